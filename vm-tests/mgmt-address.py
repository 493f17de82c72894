def announces(node: Node, address: str, interface: str, timeout: int = 30) -> None:
    """Waits until the node has told that address, and the interface that holds it."""

    def does(last: bool) -> bool:
        link = link_of(node)
        if last:
            node.log(f"its link: {link}")
        found = (link.get("mgmt_addr"), link.get("mgmt_interface"))
        return link.get("state") == "connected" and found == (address, interface)

    retry(does, timeout)
    node.log(f"announces {address} on {interface}")


start_all()
for control in (cp1, cp2, cp3, cp4):
    control.wait_for_unit(CONTROL)

with subtest("on the management network, though no card is called ethN"):
    announces(agent1, "192.168.1.1", "mgmt.100", 60)
    before = pid(agent1)

with subtest("a bridge as docker makes it, and an address on lo, are not mistaken"):
    agent1.succeed(
        "ip link add docker0 type bridge",
        "ip addr add 172.17.0.1/16 dev docker0",
        "ip link set docker0 up",
        "ip addr add 10.99.0.1/32 dev lo",
        "systemctl restart llmgw-agent.service",
    )
    announces(agent1, "192.168.1.1", "mgmt.100")
    before = pid(agent1)

with subtest("after failover to another network the address follows"):
    role(cp2, "leader 2")
    role(cp1, "standby")
    announces(agent1, "192.168.2.1", "bond0")

with subtest("the address of the card changes under it"):
    agent1.succeed("ip addr add 192.168.2.77/24 dev bond0")
    agent1.succeed("ip addr del 192.168.2.1/24 dev bond0")
    agent1.succeed(
        "ip addr show dev bond0 | grep -q 192.168.2.77 || "
        "ip addr add 192.168.2.77/24 dev bond0"
    )
    announces(agent1, "192.168.2.77", "bond0", 60)

with subtest("a card that comes late is used once it has an address"):
    role(cp3, "leader 3")
    role(cp2, "off")
    agent1.sleep(2)
    t.assertNotEqual(link_of(agent1).get("state"), "connected")
    agent1.succeed("ip addr add 192.168.4.1/24 dev late0", "ip link set late0 up")
    announces(agent1, "192.168.4.1", "late0")

with subtest("IPv6 alone"):
    role(cp4, "leader 4")
    role(cp3, "off")
    agent1.succeed("ip -4 addr flush dev ibp65s0")
    announces(agent1, "2001:db8:3::1", "ibp65s0")

with subtest("the same process all the while"):
    t.assertEqual(pid(agent1), before)

if can(
    agent1,
    "ip link add link late0 name mgmt100 type vlan id 100",
    "a real VLAN: no such kernel device",
):
    with subtest("a VLAN on a card is the interface that the address is on"):
        cp3.succeed(
            "ip link add link eth1 name mgmt100 type vlan id 100",
            "ip addr add 192.168.100.4/24 dev mgmt100",
            "ip link set mgmt100 up",
        )
        agent1.succeed(
            "ip addr flush dev late0",
            "ip addr add 192.168.100.1/24 dev mgmt100",
            "ip link set mgmt100 up",
        )
        role(cp3, "leader 5")
        role(cp4, "off")
        announces(agent1, "192.168.100.1", "mgmt100", 60)
        t.assertEqual(pid(agent1), before)
        agent1.succeed("ip link del mgmt100")
        role(cp4, "leader 6")

if can(agent1, "ip link add llmgwbond type bond", "a real bond: no such kernel device"):
    with subtest("a bond of two cards is one interface"):
        agent1.succeed(
            "ip link set late0 down",
            "ip addr flush dev late0",
            "ip link set late0 master llmgwbond",
            "ip addr add 192.168.4.9/24 dev llmgwbond",
            "ip link set llmgwbond up",
        )
        role(cp3, "leader 7")
        role(cp4, "off")
        announces(agent1, "192.168.4.9", "llmgwbond", 60)

def black_hole(control: Node, how: str) -> None:
    """The control plane's port goes silent (drop) or refuses (reject)."""
    control.succeed(
        "nft add table inet cut",
        "nft 'add chain inet cut in { type filter hook input priority -300; }'",
        f"nft add rule inet cut in tcp dport 7443 {how}",
    )


def heal(control: Node) -> None:
    control.succeed("nft delete table inet cut")


def all_join(server: str, timeout: int = 30) -> None:
    for node in (agent1, agent2):
        joined(node, server, timeout)


for control in (cp1, cp2, cp3):
    control.start()
for control in (cp2, cp3):  # cp1 is off: it refuses
    control.wait_for_open_port(7443, timeout=60)
start_all()
with subtest("one that is off and a standby are passed over at once"):
    all_join("cp3", 60)
    agents = {node.name: pid(node) for node in (agent1, agent2)}
    for control, why in (("cp1", "refused"), ("cp2", "standby")):
        agent1.succeed(f"journalctl -b -u {AGENT} | grep -q '{control}:7443.*{why}'")
    engines = {node.name: serving(node, "chat-0", 60) for node in (agent1, agent2)}

with subtest("the leader loses power"):
    role(cp2, "leader 2")
    cp3.crash()
    all_join("cp2")

with subtest("its place is a black hole: nothing is refused, nothing answers"):
    role(cp1, "leader 3")
    cp1.wait_for_open_port(7443, timeout=10)
    black_hole(cp2, "drop")
    all_join("cp1")
    heal(cp2)

with subtest("its connections are reset"):
    role(cp2, "leader 4")
    black_hole(cp1, "reject with tcp reset")
    all_join("cp2")
    heal(cp1)

with subtest("it hangs: the connection stands, nothing comes"):
    role(cp1, "leader 5")
    cp2.succeed(f"systemctl kill -s STOP {CONTROL}")
    all_join("cp1")
    cp2.succeed(f"systemctl kill -s CONT {CONTROL}")

with subtest("its network is cut"):
    role(cp2, "leader 6")
    cp1.block()
    all_join("cp2")
    cp1.unblock()

with subtest("it steps down and says so"):
    role(cp1, "leader 7")
    role(cp2, "standby")
    all_join("cp1")

with subtest("a leader of the past is refused, however it insists"):
    cp3.start()
    cp3.wait_for_unit(CONTROL)
    role(cp3, "leader 2")
    role(cp2, "leader 3")
    black_hole(cp1, "reject with tcp reset")
    agent1.sleep(5)
    t.assertNotEqual(link_of(agent1).get("state"), "connected")
    heal(cp1)
    all_join("cp1")

with subtest("no agent was restarted in all of it, and no engine noticed"):
    for node in (agent1, agent2):
        t.assertEqual(pid(node), agents[node.name])
        t.assertEqual(serving(node, "chat-0"), engines[node.name])
        t.assertEqual(replicas(node)["chat-0"].get("restarts", 0), 0)
        answers(node, "chat-0")

def adapters() -> list[dict[str, Any]]:
    said = json.loads(agent1.succeed("llmgw survey --json 2>/dev/null", timeout=60))
    found: list[dict[str, Any]] = said["facts"]["hcas"]["value"]
    return found


def problem(part: str, timeout: int = 60) -> None:
    """Waits until the agent says that this is wrong."""
    agent1.wait_until_succeeds(
        f"llmgw status --json 2>/dev/null | grep -q {shlex.quote(part)}",
        timeout=timeout,
    )


start_all()
joined(agent1, "cp1", 120)
engine = serving(agent1, "chat-0", 90)

with subtest("an adapter that the file names and the machine lacks is a problem"):
    problem("names rxe0, and there is no such adapter")

with subtest("it comes: an adapter of its fabric, and no problem any more"):
    agent1.succeed(
        "modprobe rdma_rxe",
        "ip link set eth2 up",
        "cat /sys/class/net/eth2/operstate",
        "rdma link add rxe0 type rxe netdev eth2",
    )
    (found,) = adapters()
    agent1.log(f"found: {found}")
    t.assertEqual(found["name"], "rxe0")
    (port,) = found["ports"]
    t.assertEqual(port["state"], "active")
    t.assertEqual(port["fabrics"], ["fab0"])
    agent1.wait_until_fails(
        "llmgw status --json 2>/dev/null | grep -q 'no such adapter'", timeout=180
    )

with subtest("its port goes down, and that is said"):
    agent1.succeed("ip link set eth2 down")
    problem("hca_port_down", 180)
    agent1.succeed("ip link set eth2 up")
    agent1.wait_until_fails(
        "llmgw status --json 2>/dev/null | grep -q hca_port_down", timeout=180
    )

with subtest("a slow link that loses a tenth of all packets is no lost control plane"):
    agent1.succeed("tc qdisc add dev eth1 root netem delay 150ms 50ms loss 10%")
    before = status(agent1)["link"]
    agent1.sleep(20)
    joined(agent1, "cp1", 60)
    after = status(agent1)["link"]
    t.assertEqual(after["epoch"], before["epoch"])
    t.assertEqual(serving(agent1, "chat-0"), engine)
    agent1.succeed("tc qdisc del dev eth1 root")

with subtest("nothing gets through for a while: the engine serves on, and it is back"):
    agent1.succeed("tc qdisc add dev eth1 root netem loss 100%")
    agent1.sleep(15)
    agent1.succeed("tc qdisc del dev eth1 root")
    joined(agent1, "cp1", 60)
    t.assertEqual(serving(agent1, "chat-0"), engine)
    answers(agent1, "chat-0")

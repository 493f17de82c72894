def eats(node: Node, id: str) -> None:
    """The engine is told to take more than it may have; there is no answer to that."""
    replica = replicas(node)[id]
    url = f"http://{replica['address']}:{replica['ports']['api']}/eat"
    node.fail(f"curl -sf --max-time 60 {shlex.quote(url)}", timeout=90)


start_all()
for node in (agent1, agent2):
    with subtest(f"{node.name}: one engine runs out of memory, and dies alone"):
        joined(node, "cp1", 120)
        engines = {id: serving(node, id, 120) for id in ("chat-0", "chat-1")}
        before = pid(node)
        eats(node, "chat-0")
        node.wait_until_fails(f"test -d /proc/{engines['chat-0']}", timeout=30)
        t.assertEqual(pid(node), before)
        lives(node, engines["chat-1"])
        t.assertEqual(serving(node, "chat-1"), engines["chat-1"])
        answers(node, "chat-1")

    with subtest(f"{node.name}: it is said what it died of"):
        node.wait_until_succeeds(
            f"journalctl -b -u {AGENT} | "
            "grep -q 'engine down replica=chat-0.*out of memory'",
            timeout=30,
        )

    with subtest(f"{node.name}: it is started again, within its limit"):
        again = serving(node, "chat-0", 60)
        t.assertNotEqual(again, engines["chat-0"])
        group = node.succeed(f"grep ^0:: /proc/{again}/cgroup").strip()[3:]
        file = shlex.quote(f"/sys/fs/cgroup{group}/memory.max")
        limit = node.succeed(f"cat {file}").strip()
        t.assertEqual(limit, str(64 * 1024 * 1024))
        t.assertNotIn("/agent", group)

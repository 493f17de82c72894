start_all()
with subtest("two machines with one file: each found its own name"):
    for node in (agent1, agent2):
        joined(node, "cp1", 60)
        t.assertEqual(status(node)["node_id"], node.name)
    engine = serving(agent1, "chat-0", 60)
    before = pid(agent1)

with subtest("a copy that calls itself like the first is refused, and says why"):
    agent2.succeed(f"hostname {agent1.name}", f"systemctl restart {AGENT}")
    agent2.wait_until_succeeds(
        "llmgw status --json | grep -q 'has a live session from another machine'",
        timeout=60,
    )
    t.assertEqual(status(agent2)["node_id"], agent1.name)
    t.assertNotEqual(link_of(agent2).get("state"), "connected")

with subtest("the first one is not disturbed"):
    joined(agent1, "cp1")
    t.assertEqual(pid(agent1), before)
    t.assertEqual(serving(agent1, "chat-0"), engine)

with subtest("with a name of its own it is a node again"):
    agent2.succeed("hostname agent2", f"systemctl restart {AGENT}")
    joined(agent2, "cp1", 60)

with subtest("the copy may take the name once the first has left"):
    agent1.succeed(f"systemctl stop {AGENT}")
    agent2.succeed("hostname agent1", f"systemctl restart {AGENT}")
    joined(agent2, "cp1", 60)

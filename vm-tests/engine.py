def completion(count: int) -> dict[str, Any]:
    """Asked from another machine, at the address that the node announces."""
    replica = replicas(agent1)["chat-0"]
    url = f"http://{replica['address']}:{replica['ports']['api']}/v1/chat/completions"
    body = json.dumps(
        {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": count}
    )
    said = cp1.succeed(
        f"curl -sf --max-time 30 -d {shlex.quote(body)} {url}", timeout=40
    )
    answer: dict[str, Any] = json.loads(said)
    return answer


start_all()
joined(agent1, "cp1", 60)
with subtest("a chat completion, from another machine"):
    engine = serving(agent1, "chat-0", 120)
    answer = completion(8)
    t.assertEqual(answer["usage"]["completion_tokens"], 8)
    t.assertTrue(answer["choices"][0]["message"]["content"])

with subtest("it answers while the agent is away, and afterwards"):
    agent1.succeed(f"systemctl stop {AGENT}")
    replica_lives = f"test -d /proc/{engine}"
    agent1.succeed(replica_lives)
    agent1.succeed(f"systemctl start {AGENT}")
    t.assertEqual(serving(agent1, "chat-0", 60), engine)
    completion(4)

with subtest("killed, it is started again and answers"):
    agent1.succeed(f"kill -9 {engine}")
    agent1.wait_until_fails(replica_lives, timeout=10)
    agent1.wait_until_succeeds(
        "llmgw status --json | grep -q '\"restarts\":1'", timeout=60
    )
    t.assertNotEqual(serving(agent1, "chat-0", 60), engine)
    completion(4)

with subtest("no longer wanted, it goes, and nothing is left of it"):
    engine = serving(agent1, "chat-0")
    agent1.succeed("llmgw engines stop chat-0", timeout=60)
    agent1.wait_until_fails(f"test -d /proc/{engine}", timeout=60)

TLS = (
    '[tls]\ncert_file = "/run/n.crt"\nkey_file = "/run/n.key"\nca_file = "/run/c.crt"\n'
)


def place(node: Node, text: str) -> None:
    """A hand-placed file, as somebody who goes around the build would put it there."""
    node.succeed(
        f"printf %s {shlex.quote(text)} > /run/placed.toml",
        "rm -f /etc/llmgw/agent.toml",
        "cp /run/placed.toml /etc/llmgw/agent.toml",
    )


start_all()
joined(agent1, "cp1", 60)
good: str = agent1.succeed("cat /etc/llmgw/agent.toml")

with subtest("every row of the table is refused by the check, with its message"):
    cases: list[dict[str, Any]] = json.loads(
        agent1.succeed("cat /etc/llmgw-cases.json")
    )
    for case in cases:
        text = shlex.quote(json.dumps(case["settings"]))
        agent1.succeed(f"printf %s {text} > /run/case.json")
        code, said = agent1.execute("llmgw check /run/case.json 2>&1", timeout=20)
        if "agent" in case:
            t.assertEqual(code, 78, f"{case['name']}: {said}")
            t.assertIn(case["agent"], said)
        else:
            t.assertEqual(code, 0, f"{case['name']}: {said}")

with subtest("a wrong file on reload leaves the running agent as it was"):
    before = pid(agent1)
    place(agent1, 'servers = ["https://cp1:7443"]\n')
    agent1.execute("systemctl reload llmgw-agent.service")
    agent1.wait_until_succeeds(
        f"systemctl show -P StatusText {AGENT} | grep -q 'no tls certificates' || "
        "llmgw status --json | grep -q 'no tls certificates are configured'",
        timeout=20,
    )
    t.assertEqual(pid(agent1), before)
    joined(agent1, "cp1")

with subtest("a right file on reload is taken, by the same process"):
    place(agent1, good)
    agent1.succeed("systemctl reload llmgw-agent.service", timeout=20)
    t.assertEqual(pid(agent1), before)
    agent1.fail("llmgw status --json | grep -q 'no tls certificates are configured'")
    joined(agent1, "cp1")

refused = [
    ('servers = ["https://cp1:7443"]\n', "no tls certificates are configured"),
    ('servers = ["http://cp1:7443"]\n' + TLS, "is an http:// address; use https://"),
    ('servers = ["ftp://cp1"]\n', "must be an http:// or https:// address"),
]
for text, message in refused:
    with subtest(f"refused at start: {message}"):
        place(agent1, text)
        agent1.execute("systemctl restart llmgw-agent.service")
        agent1.wait_until_succeeds(f"systemctl is-failed {AGENT}", timeout=20)
        t.assertEqual(agent1.get_unit_property(AGENT, "ExecMainStatus"), "78")
        agent1.succeed(f"journalctl -b -u {AGENT} | grep -qF {shlex.quote(message)}")
        # and `systemctl status` shows it, however long ago that was
        t.assertIn(message, agent1.get_unit_property(AGENT, "StatusText"))
        # it waits for a person: no second try
        t.assertEqual(agent1.get_unit_property(AGENT, "SubState"), "failed")
        t.assertEqual(agent1.get_unit_property(AGENT, "NRestarts"), "0")

with subtest("a restart after the repair recovers"):
    place(agent1, good)
    agent1.succeed("systemctl restart llmgw-agent.service", timeout=20)
    joined(agent1, "cp1")

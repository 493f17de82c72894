def dated(begin: str, end: str) -> None:
    """A certificate for cp1 that is right but for its dates, and takes its place."""
    cp1.succeed(
        "openssl req -new -key /root/pki/cp1.key -subj /CN=cp1 -out /root/cp1.csr",
        "printf 'subjectAltName=DNS:cp1\\nextendedKeyUsage=serverAuth\\n' > /root/ext",
        "openssl x509 -req -in /root/cp1.csr -CA /root/pki/ca.crt "
        "-CAkey /root/pki/ca.key -extfile /root/ext -out /run/secrets/tls.crt "
        f"-not_before {begin} -not_after {end} 2>&1",
    )


def passed_over(reason: str, timeout: int = 40) -> None:
    """Waits until the agent says that this is why it is not with cp1."""

    def says(last: bool) -> bool:
        link = link_of(agent1)
        if last:
            agent1.log(f"its link: {link}")
        tried: dict[str, str] = link.get("tried", {})
        return any(reason in why for why in tried.values())

    retry(says, timeout)
    t.assertNotEqual(link_of(agent1).get("state"), "connected")


def serve_again() -> None:
    cp1.succeed(f"systemctl restart {CONTROL}")


start_all()
with subtest("both wait for their certificates, and are there once they have them"):
    agent1.wait_until_succeeds(
        f"journalctl -b -u {AGENT} | grep -qi credentials", timeout=60
    )
    cp1.succeed("llmgw pki --dir /root/pki init", "llmgw pki --dir /root/other init")
    cp1.succeed("llmgw pki --dir /root/pki issue cp1 --san cp1")
    for name in ("agent1", "stranger"):
        cp1.succeed(f"llmgw pki --dir /root/pki issue {name}")
    for name, san in (("cp1", "cp1"), ("agent1", "agent1")):
        cp1.succeed(f"llmgw pki --dir /root/other issue {name} --san {san}")
    bring(cp1, "cp1", cp1)
    bring(cp1, "agent1", agent1)
    joined(agent1, "cp1", 90)
    engine = serving(agent1, "chat-0", 60)

with subtest("the control plane's certificate is of another CA"):
    bring(cp1, "cp1", cp1, "/root/other")
    serve_again()
    passed_over("is not signed by a CA in tls.ca_file")

with subtest("it has expired"):
    bring(cp1, "cp1", cp1)
    dated("20240101000000Z", "20240201000000Z")
    serve_again()
    passed_over("has expired by this machine's clock")

with subtest("it is not valid yet"):
    dated("20990101000000Z", "20990201000000Z")
    serve_again()
    passed_over("is not yet valid by this machine's clock")

with subtest("it is for another name"):
    cp1.succeed("llmgw pki --dir /root/pki issue elsewhere --san elsewhere")
    bring(cp1, "elsewhere", cp1)
    serve_again()
    passed_over("is for another name")

with subtest("repaired, the agent comes back by itself"):
    bring(cp1, "cp1", cp1)
    serve_again()
    joined(agent1, "cp1", 60)

with subtest("a renewed certificate reaches the agent without anybody's doing"):
    cp1.succeed("llmgw pki --dir /root/pki issue agent1 --force")
    bring(cp1, "agent1", agent1)
    copy = "/run/credentials/llmgw-agent.service/tls.cert_file"
    agent1.wait_until_succeeds(f"cmp /run/secrets/tls.crt {copy}", timeout=60)
    joined(agent1, "cp1", 60)

with subtest("the engine noticed nothing of it"):
    t.assertEqual(serving(agent1, "chat-0"), engine)
    answers(agent1, "chat-0")

with subtest("the agent's own certificate is for another node"):
    bring(cp1, "stranger", agent1)
    agent1.wait_until_succeeds(
        f"journalctl -b -u {AGENT} | grep -q 'certificate .* is for .stranger.'",
        timeout=60,
    )
    lives(agent1, engine)

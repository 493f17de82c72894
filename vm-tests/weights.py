MIB = 1024 * 1024
SIZE = 576 * MIB
CACHE = "/var/lib/llmgw-weights"


def served() -> int:
    """What left the mirror, all headers and TLS included."""
    return int(mirror.succeed("cat /sys/class/net/eth1/statistics/tx_bytes"))


def serve(authority: str) -> None:
    """The mirror with a certificate of that CA."""
    bring(cp1, "mirror", mirror, authority)
    mirror.succeed("systemctl restart llmgw-mirror.service")
    mirror.wait_for_open_port(443, timeout=30)


start_all()
with subtest("a mirror whose certificate is of another CA is not believed"):
    cp1.succeed("llmgw pki --dir /root/pki init", "llmgw pki --dir /root/other init")
    for authority in ("/root/pki", "/root/other"):
        cp1.succeed(f"llmgw pki --dir {authority} issue mirror --san mirror")
    mirror.succeed("bash /etc/llmgw-big", timeout=120)
    wanted: str = mirror.succeed(
        "sha256sum /srv/weights/https/models.example/big.bin/big.bin", timeout=120
    ).split()[0]
    serve("/root/other")
    bring(cp1, "mirror", agent1)  # for the CA in it
    joined(agent1, "cp1", 90)
    agent1.wait_until_succeeds(
        f"journalctl -b -u {AGENT} | grep -q 'https://mirror.*is not trusted'",
        timeout=60,
    )
    t.assertLess(served(), MIB)

with subtest("half way the power is cut"):
    serve("/root/pki")
    before = served()
    # systemd's own restart wait is not what this is about
    agent1.succeed(f"systemctl restart {AGENT}")
    # the journal of the fetch says what a sync has brought to the disk
    agent1.wait_until_succeeds(
        f"grep -rEq '^s [1-9]' {CACHE}/.llmgw-fetch --include='*.journal'", timeout=120
    )
    agent1.crash()
    at_the_cut = served() - before
    agent1.log(f"the mirror had sent {at_the_cut // MIB} MiB of {SIZE // MIB}")
    t.assertLess(at_the_cut, SIZE * 0.75)

with subtest("the rest is fetched, and what was on the disk is not asked for again"):
    agent1.start()
    bring(cp1, "mirror", agent1)
    process = serving(agent1, "chat-0", 180)
    sent = served() - before
    agent1.log(f"the mirror has sent {sent // MIB} MiB of {SIZE // MIB}")
    # all of it, and of what was sent twice only what no sync had come back for;
    # a twentieth is TCP's and TLS's own
    t.assertGreater(sent, SIZE)
    t.assertLess(sent, SIZE * 1.10 + SIZE // 20)

with subtest("it is the mirror's file, byte for byte, and was verified"):
    found = agent1.succeed(f"find {CACHE} -type f -name big.bin").split()
    t.assertEqual(len(found), 1)
    digest = agent1.succeed(f"sha256sum {found[0]}", timeout=120).split()[0]
    t.assertEqual(digest, wanted)
    folder = found[0].rpartition("/")[0]
    marker = json.loads(agent1.succeed(f"cat {folder}/llmgw-complete.json"))
    t.assertEqual(marker["files"]["big.bin"]["sha256"], wanted)
    agent1.succeed("llmgw weights verify", timeout=120)

with subtest("the next start needs no mirror"):
    mirror.crash()
    agent1.reboot()
    bring(cp1, "mirror", agent1)
    t.assertNotEqual(serving(agent1, "chat-0", 90), process)
    answers(agent1, "chat-0")

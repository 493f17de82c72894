start_all()
joined(agent1, "cp1", 60)
engines = {id: serving(agent1, id, 60) for id in ("chat-0", "chat-1")}

by_systemd = agent1.execute("grep -q systemd /etc/llmgw/agent.toml")[0] == 0
for id in engines:
    code, _ = agent1.systemctl(f"is-active llmgw-engine@{id}.service")
    t.assertEqual(code == 0, by_systemd, "held in another way than the file says")


def still_serve(how: str, comes_back: bool = True) -> None:
    """A new agent, the same engines: the same processes, adopted, and they answer."""
    for process in engines.values():
        lives(agent1, process)
    for id, process in engines.items():
        t.assertEqual(serving(agent1, id), process, f"{id} after {how}")
        t.assertTrue(replicas(agent1)[id].get("adopted") or not comes_back)
        answers(agent1, id)


def new_agent(before: str) -> None:
    agent1.wait_until_succeeds(
        f"test $(systemctl show -P MainPID {AGENT}) != {before} && "
        f"systemctl is-active {AGENT}",
        timeout=60,
    )


with subtest("a reload keeps the agent and the engines"):
    before = pid(agent1)
    agent1.succeed(f"systemctl reload {AGENT}", timeout=20)
    t.assertEqual(pid(agent1), before)
    still_serve("reload", comes_back=False)

with subtest("a restart"):
    before = pid(agent1)
    agent1.succeed(f"systemctl restart {AGENT}", timeout=30)
    new_agent(before)
    still_serve("restart")

with subtest("SIGKILL"):
    before = pid(agent1)
    agent1.succeed(f"systemctl kill -s KILL --kill-whom=main {AGENT}")
    new_agent(before)
    still_serve("SIGKILL")

with subtest("a hung agent is killed by the watchdog"):
    before = pid(agent1)
    agent1.succeed(f"systemctl kill -s STOP --kill-whom=main {AGENT}")
    new_agent(before)
    still_serve("watchdog")

with subtest("stopped for a while, and started"):
    before = pid(agent1)
    agent1.succeed(f"systemctl stop {AGENT}", timeout=30)
    for process in engines.values():
        lives(agent1, process)
    agent1.succeed(f"systemctl start {AGENT}", timeout=30)
    still_serve("stop and start")

with subtest("one engine dies: it alone is started again"):
    agent1.succeed(f"kill -9 {engines['chat-1']}")
    agent1.wait_until_fails(f"test -d /proc/{engines['chat-1']}", timeout=10)
    agent1.wait_until_succeeds(
        "llmgw status --json | grep -q '\"restarts\":1'", timeout=30
    )
    again = serving(agent1, "chat-1")
    t.assertNotEqual(again, engines["chat-1"])
    t.assertEqual(serving(agent1, "chat-0"), engines["chat-0"])
    engines["chat-1"] = again


def switched(to: str) -> None:
    """The system becomes that specialisation of it; "" is the system itself."""
    place = f"/specialisation/{to}" if to else ""
    agent1.succeed(f"/root/system{place}/bin/switch-to-configuration test 2>&1")


def changed_file() -> None:
    """As a switch does it: the file is another, and the unit is reloaded."""
    agent1.succeed(
        "sed -i '$a labels = { switched = \"yes\" }' /etc/llmgw/agent.toml",
        f"systemctl reload {AGENT}",
    )


def changed_package() -> None:
    """The unit names another path of the program; then what a switch does of itself."""
    unit = f"/etc/systemd/system/{AGENT}"
    agent1.succeed(
        "mkdir -p /opt/llmgw-again && cp -a /opt/llmgw/bin /opt/llmgw-again/",
        f"sed -i s,=/opt/llmgw/bin/,=/opt/llmgw-again/bin/, {unit}",
        "systemctl daemon-reload",
        f"systemctl restart {AGENT}",
    )


is_nixos = can(
    agent1,
    "test -e /run/current-system",
    "switch-to-configuration itself; what it does to the unit is done by hand",
)
if is_nixos:
    agent1.succeed("ln -s $(readlink -f /run/current-system) /root/system")
    with subtest("a switch that changes nothing leaves agent and engines"):
        before = pid(agent1)
        switched("")
        t.assertEqual(pid(agent1), before)
        still_serve("switch", comes_back=False)

with subtest("a switch to another file reloads: the same agent, the new label"):
    before = pid(agent1)
    if is_nixos:
        switched("file")
    else:
        changed_file()
    agent1.wait_until_succeeds(
        f"journalctl -b -u {AGENT} | grep -q 'file read again changed=labels'",
        timeout=20,
    )
    t.assertEqual(pid(agent1), before)
    still_serve("another file", comes_back=False)

with subtest("a switch to another package restarts it once, and engines are adopted"):
    before = pid(agent1)
    if is_nixos:
        switched("package")
    else:
        changed_package()
    new_agent(before)
    t.assertEqual(agent1.get_unit_property(AGENT, "NRestarts"), "0")
    program = agent1.succeed(f"tr '\\0' ' ' < /proc/{pid(agent1)}/cmdline")
    t.assertIn("again", program)
    still_serve("another package")

with subtest("a reboot starts them again, also without a control plane"):
    cp1.crash()
    agent1.reboot()
    for id in engines:
        engines[id] = serving(agent1, id, 90)
        answers(agent1, id)

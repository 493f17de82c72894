controls = {"cp1": cp1, "cp2": cp2, "cp3": cp3}


def leader(timeout: int = 60) -> str:
    """Waits until both agents are with the same control plane; which one."""
    found = ""

    def agree(last: bool) -> bool:
        nonlocal found
        links = [link_of(node) for node in (agent1, agent2)]
        if last:
            agent1.log(f"the links: {links}")
        if any(link.get("state") != "connected" for link in links):
            return False
        servers = {str(link["server"]).split("//")[1].split(":")[0] for link in links}
        found = min(servers)
        return len(servers) == 1

    retry(agree, timeout)
    agent1.log(f"both are with {found}")
    return found


start_all()
with subtest("one is elected, and both agents find it"):
    first = leader(90)
    epoch: int = link_of(agent1)["epoch"]
    agents = {node.name: pid(node) for node in (agent1, agent2)}

with subtest("the elected leader loses power: another is elected, with a higher epoch"):
    controls[first].crash()
    second = leader()
    t.assertNotEqual(second, first)
    t.assertGreater(link_of(agent1)["epoch"], epoch)
    epoch = link_of(agent1)["epoch"]

with subtest("the lost one comes back and takes nothing"):
    controls[first].start()
    controls[first].wait_for_unit(CONTROL)
    controls[first].wait_for_open_port(7443, timeout=60)
    t.assertEqual(leader(), second)
    t.assertEqual(link_of(agent1)["epoch"], epoch)

with subtest("the leader is asked to stop: its place is given up at once"):
    controls[second].succeed(f"systemctl stop {CONTROL}")
    third = leader(10)  # sooner than a lease ends by itself
    t.assertNotEqual(third, second)
    t.assertGreater(link_of(agent1)["epoch"], epoch)

with subtest("no agent was restarted in all of it"):
    for node in (agent1, agent2):
        t.assertEqual(pid(node), agents[node.name])

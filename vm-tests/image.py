start_all()
with subtest("it finds the control plane by its one name, and is who the site says"):
    joined(machine1, "llmgw-control", 120)
    t.assertEqual(status(machine1)["node_id"], "node-17")

with subtest("with another name it is another node, from the same disk"):
    machine1.succeed("hostname node-18", f"systemctl restart {AGENT}")
    joined(machine1, "llmgw-control", 60)
    t.assertEqual(status(machine1)["node_id"], "node-18")

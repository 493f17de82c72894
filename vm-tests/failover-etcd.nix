# The same with an election: three control planes on a three-member etcd, no file that says who leads.
{ fleet }:
let
  names = [ "cp1" "cp2" "cp3" ];
  agent = fleet.agent { settings.servers = map (name: "${name}:7443") names; };
  control = fleet.elected { inherit names; };
in
fleet.test {
  name = "failover-etcd";
  nodes = {
    agent1 = agent;
    agent2 = agent;
    cp1 = control "cp1";
    cp2 = control "cp2";
    cp3 = control "cp3";
  };
  script = ./failover-etcd.py;
}

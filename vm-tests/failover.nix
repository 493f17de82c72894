# An operator pulls the plug on a control plane, in every way there is, and no engine notices.
{ fleet }:
let
  servers = [ "cp1:7443" "cp2:7443" "cp3:7443" ];
in
fleet.test {
  name = "failover";
  nodes = {
    agent1 = fleet.agent { settings = { inherit servers; }; };
    agent2 = fleet.agent { settings = { inherit servers; }; };
    cp1 = fleet.controlPlane { role = "off"; };
    cp2 = fleet.controlPlane { role = "standby"; };
    cp3 = fleet.controlPlane { role = "leader 1"; };
  };
  script = ./failover.py;
}

# An operator pulls the plug on a control plane, in every way there is, and no engine notices.
{ fleet }:
let
  agent = fleet.agent { settings.servers = [ "cp1:7443" "cp2:7443" "cp3:7443" ]; };
  # what is wanted is the same whoever leads
  control = role: fleet.controlPlane {
    inherit role;
    config.services.llmgw-control.desired = {
      agent1 = [ (fleet.engine "chat-0") ];
      agent2 = [ (fleet.engine "chat-0") ];
    };
  };
in
fleet.test {
  name = "failover";
  nodes = {
    agent1 = agent;
    agent2 = agent;
    cp1 = control "off";
    cp2 = control "standby";
    cp3 = control "leader 1";
  };
  script = ./failover.py;
}

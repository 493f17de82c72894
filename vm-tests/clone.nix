# Two machines of one image are two nodes; two that claim to be one are told so, and the first is left alone.
{ fleet }:
let
  agent = fleet.agent { settings.servers = [ "cp1:7443" ]; };
in
fleet.test {
  name = "clone";
  nodes = {
    agent1 = agent;
    agent2 = agent;
    cp1 = fleet.controlPlane {
      role = "leader 1";
      config.services.llmgw-control.desired.agent1 = [ (fleet.engine "chat-0") ];
    };
  };
  script = ./clone.py;
}

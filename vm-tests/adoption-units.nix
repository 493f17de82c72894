# The same promise where each engine is a unit of systemd: supervisor.backend = "systemd".
{ fleet }:
fleet.test {
  name = "adoption-units";
  nodes = {
    agent1 = fleet.agent {
      settings = { servers = [ "cp1:7443" ]; supervisor.backend = "systemd"; };
      config = { lib, ... }: {
        imports = [ fleet.switches ];
        systemd.services.llmgw-agent.serviceConfig.WatchdogSec = lib.mkForce 4;
      };
    };
    cp1 = fleet.controlPlane {
      role = "leader 1";
      config.services.llmgw-control.desired.agent1 = map fleet.engine [ "chat-0" "chat-1" ];
    };
  };
  script = ./adoption.py;
}

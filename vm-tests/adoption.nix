# An engine that took twenty minutes to load outlives every ending of the agent, and the next agent knows it.
{ fleet }:
fleet.test {
  name = "adoption";
  nodes = {
    agent1 = fleet.agent {
      settings.servers = [ "cp1:7443" ];
      config = { lib, ... }: {
        imports = [ fleet.switches ];
        # what the watchdog's subtest waits for
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

# A scheme that contradicts the certificates never gets as far as a connection, whichever way the file came.
{ fleet }:
fleet.test {
  name = "tls-scheme";
  nodes = {
    agent1 = fleet.agent {
      settings.servers = [ "cp1:7443" ];
      # every row that both the assertions and the agent's checker are tested with
      config.environment.etc."llmgw-cases.json".text = builtins.readFile ../tests/data/server-cases.json;
    };
    cp1 = fleet.controlPlane { role = "leader 1"; };
  };
  script = ./tls-scheme.py;
}

# A real llama.cpp server with a small model answers a chat completion, through the whole path.
{ fleet }:
fleet.test {
  name = "engine";
  nodes = {
    agent1 = fleet.agent {
      settings = { servers = [ "cp1:7443" ]; model_dirs = [ "/var/lib/llmgw-models" ]; };
      config = { pkgs, ... }:
        let
          # random weights, a quarter of a megabyte: what is tested is the path, not the answer
          model = pkgs.runCommand "tiny.gguf" { nativeBuildInputs = [ (pkgs.python3.withPackages (p: [ p.gguf p.numpy ])) ]; } ''
            python3 ${../tests/models/tiny_gguf.py} $out
          '';
        in
        {
          services.llmgw-agent.settings.engines.llamacpp.path = "${pkgs.llama-cpp}/bin/llama-server";
          systemd.tmpfiles.rules = [ "C /var/lib/llmgw-models/tiny.gguf - - - - ${model}" ];
          virtualisation.memorySize = 2048;
        };
    };
    cp1 = fleet.controlPlane {
      role = "leader 1";
      config.services.llmgw-control.desired.agent1 = [{
        id = "chat-0";
        generation = 1;
        engine = "llamacpp";
        model = { name = "tiny"; path = "/var/lib/llmgw-models/tiny.gguf"; };
        context = 512;
      }];
    };
  };
  script = ./engine.py;
}

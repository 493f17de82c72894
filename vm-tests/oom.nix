# An engine that eats all the memory there is dies alone: the agent lives, its neighbour serves, and `out of memory` is said.
{ fleet }:
let
  # GET /eat takes a gigabyte
  hungry = ''
    import http.server, sys

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            eaten = [b"x" * (1 << 20) for _ in range(1024)] if self.path == "/eat" else []
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"%d\n" % len(eaten))

    http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Answer).serve_forever()
  '';
  agent = backend: config: fleet.agent {
    settings = {
      servers = [ "cp1:7443" ];
      supervisor = { inherit backend; };
      engines.command.args = fleet.force [ "/etc/llmgw-engine/hungry.py" "{host}" "{port}" ];
    };
    config = {
      imports = [ config ];
      environment.etc."llmgw-engine/hungry.py".text = hungry;
      virtualisation.memorySize = 512;
    };
  };
  wanted = [ (fleet.engine "chat-0" // { memory = 64 * 1024 * 1024; }) (fleet.engine "chat-1") ];
in
fleet.test {
  name = "oom";
  lite = "memory limits need a kernel of one's own";
  nodes = {
    agent1 = agent "process" { };
    # a unit's limit is its template's: the agent may set none
    agent2 = agent "systemd" { systemd.services."llmgw-engine@".serviceConfig.MemoryMax = 67108864; };
    cp1 = fleet.controlPlane {
      role = "leader 1";
      config.services.llmgw-control.desired = { agent1 = wanted; agent2 = wanted; };
    };
  };
  script = ./oom.py;
}

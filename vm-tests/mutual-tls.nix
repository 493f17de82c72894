# Both ends prove who they are, and whoever cannot is told what is wrong with the certificate.
{ fleet }:
let
  tls = { cert_file = "/run/secrets/tls.crt"; key_file = "/run/secrets/tls.key"; ca_file = "/run/secrets/ca.crt"; };
in
fleet.test {
  name = "mutual-tls";
  nodes = {
    agent1 = fleet.agent { settings = { servers = [ "cp1:7443" ]; inherit tls; }; };
    cp1 = fleet.controlPlane {
      role = "leader 1";
      config = { pkgs, ... }: {
        environment.systemPackages = [ pkgs.openssl ];
        services.llmgw-control = { inherit tls; desired.agent1 = [ (fleet.engine "chat-0") ]; };
      };
    };
  };
  script = ./mutual-tls.py;
}

# Weights come from the site's mirror over TLS; a power cut half way costs what was not on the disk yet, and nothing else.
{ fleet }:
let
  source = "https://models.example/big.bin"; # a name that nothing resolves: the mirror alone has it
  digest = "sha256:bd0f8f08b9195d43b39744ca49fa04d688587a92443db125728535a634680de2"; # of what the mirror makes below
  file = "/srv/weights/https/models.example/big.bin/big.bin";
in
fleet.test {
  name = "weights";
  nodes = {
    agent1 = fleet.agent {
      settings = {
        servers = [ "cp1:7443" ];
        weights = {
          mirrors = [ { url = "https://mirror"; ca_file = "/run/secrets/ca.crt"; } ];
          # long enough for a power cut in the middle
          rate_limit = "64MB";
        };
      };
      config.virtualisation.diskSize = 4096;
    };
    cp1 = fleet.controlPlane {
      role = "leader 1";
      config.services.llmgw-control.desired.agent1 = [ (fleet.engine "chat-0" // { model = { name = "big"; inherit source digest; }; }) ];
    };
    mirror = { pkgs, ... }: {
      networking.firewall.allowedTCPPorts = [ 443 ];
      virtualisation.diskSize = 4096;
      environment.etc."llmgw-mirror.conf".text = ''
        daemon off;
        pid /run/llmgw-mirror.pid;
        error_log stderr;
        events { }
        http {
          access_log off;
          server {
            listen 443 ssl;
            ssl_certificate /run/secrets/tls.crt;
            ssl_certificate_key /run/secrets/tls.key;
            root /srv/weights;
          }
        }
      '';
      # the file of the test: pieces that differ, so that none can stand for another
      environment.etc."llmgw-big".text = ''
        mkdir -p $(dirname ${file})
        truncate -s 576M ${file}
        for at in $(seq 0 575); do
          printf 'piece %s' $at | dd of=${file} bs=1M seek=$at conv=notrunc status=none
        done
      '';
      systemd.services.llmgw-mirror = {
        description = "a cache served as it lies";
        serviceConfig = {
          ExecStart = "${pkgs.nginx}/bin/nginx -e stderr -c /etc/llmgw-mirror.conf";
          LogsDirectory = "nginx";
          Restart = "always";
        };
      };
    };
  };
  script = ./weights.py;
}

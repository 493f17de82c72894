# Topologies: the nodes that the tests are made of, and how a test is put together.
{ lib, self }:
{
  # A control plane whose role a script sets by writing one line to /run/llmgw-role.
  controlPlane = { role ? "standby", config ? { } }: {
    imports = [ self.nixosModules.llmgw-control config ];
    systemd.tmpfiles.rules = [ "f /run/llmgw-role 0644 - - - ${role}" ];
    services.llmgw-control = {
      enable = true;
      role = lib.mkDefault "follow-file";
      roleFile = lib.mkDefault "/run/llmgw-role";
      openFirewall = true;
    };
  };

  # A control plane and a member of etcd on one machine; the members elect who leads.
  elected = { names }: name: {
    imports = [ self.nixosModules.llmgw-control ];
    networking.firewall.allowedTCPPorts = [ 2379 2380 ];
    services.etcd = {
      enable = true;
      inherit name;
      listenClientUrls = [ "http://0.0.0.0:2379" ];
      advertiseClientUrls = [ "http://${name}:2379" ];
      listenPeerUrls = [ "http://0.0.0.0:2380" ];
      initialAdvertisePeerUrls = [ "http://${name}:2380" ];
      initialCluster = map (member: "${member}=http://${member}:2380") names;
    };
    services.llmgw-control = {
      enable = true;
      role = "etcd";
      etcd = map (member: "http://${member}:2379") names;
      url = "http://${name}:7443";
      # long enough to tell a place that was given up from one that ran out
      extraArgs = [ "--etcd-ttl" "15" ];
      openFirewall = true;
    };
  };

  # An agent that may run the node's own python as an engine: a program that is everywhere and answers /health.
  agent = { settings ? { }, config ? { } }: { pkgs, ... }: {
    imports = [ self.nixosModules.llmgw-agent config ];
    environment.systemPackages = [ pkgs.nftables ];
    # the replicas serve this folder: GET /health is 200
    environment.etc."llmgw-engine/health".text = "ok\n";
    services.llmgw-agent = {
      enable = true;
      openFirewall = true;
      settings = lib.mkMerge [
        {
          heartbeat_interval = "1s";
          reconnect_max = "2s";
          supervisor.backend = lib.mkDefault "process";
          engines.command = {
            enabled = true;
            path = "${pkgs.python3}/bin/python3";
            args = [ "-m" "http.server" "--bind" "{host}" "--directory" "/etc/llmgw-engine" "{port}" ];
          };
        }
        settings
      ];
    };
  };

  # The node of the images.
  image = { imports = [ self.nixosModules.llmgw-agent ../../nixos-module/node-image.nix ]; system.stateVersion = "25.05"; };

  # What a switch can bring to a node: another file, and the same program as another package, as an upgrade is.
  switches = { lib, pkgs, ... }: {
    system.switch.enable = true;
    specialisation.file.configuration.services.llmgw-agent.settings.labels.switched = "yes";
    specialisation.package.configuration.services.llmgw-agent.package = lib.mkForce (pkgs.symlinkJoin {
      name = "llmgw-again";
      paths = [ self.packages.${pkgs.stdenv.hostPlatform.system}.default ];
      meta.mainProgram = "llmgw";
    });
  };

  # A replica of it, as a control plane wants it.
  engine = id: { inherit id; generation = 1; engine = "command"; };

  # in the place of what a node of this fleet has anyway
  force = lib.mkForce;

  # lite: why the light guests cannot do it, if they cannot; nowhereElse: nor can guests with a kernel of their own
  test = { name, nodes, script, defaults ? { }, lite ? null, nowhereElse ? false }: {
    inherit name nodes;
    globalTimeout = 600;
    # several networks and answers by another way than the question's
    defaults = {
      imports = [ defaults ];
      networking.firewall.checkReversePath = "loose";
    };
    testScript = lib.concatMapStrings builtins.readFile [ ./prelude.py script ];
  };
}

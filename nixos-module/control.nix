# services.llmgw-control: the reference control plane.
{ config, lib, pkgs, ... }:
let
  inherit (lib) mkOption types;
  cfg = config.services.llmgw-control;
  credentials = lib.filterAttrs (_: file: file != null) { inherit (cfg.tls) cert_file key_file ca_file; };
  credential = name: "/run/credentials/llmgw-control.service/${name}";
  flag = name: value: lib.optionals (value != null) [ "--${name}" (toString value) ];
  arguments =
    [ (lib.getExe cfg.package) "control" "--listen" cfg.listen "--state-dir" "/var/lib/llmgw-control" "--role" cfg.role ]
    ++ flag "role-file" cfg.roleFile
    ++ flag "url" cfg.url
    ++ flag "desired-file" (if cfg.desired == null then null else "/etc/llmgw/desired.json")
    ++ flag "etcd" (if cfg.etcd == [ ] then null else lib.concatStringsSep "," cfg.etcd)
    ++ lib.optionals (credentials != { }) [
      "--tls-cert" (credential "cert_file") "--tls-key" (credential "key_file") "--tls-ca" (credential "ca_file")
    ]
    ++ cfg.extraArgs;
  port = lib.toInt (lib.last (lib.splitString ":" cfg.listen));
in
{
  options.services.llmgw-control = {
    enable = lib.mkEnableOption "the llmgw reference control plane";
    package = lib.mkPackageOption pkgs "llmgw-agent" { };
    listen = mkOption {
      type = types.strMatching ".*:[0-9]+";
      default = ":7443";
      description = "Address and port the agents connect to; without an address, every one of this machine.";
    };
    role = mkOption {
      type = types.enum [ "leader" "standby" "follow-file" "etcd" ];
      default = "leader";
      description = "Whether this one leads: always, never, as `roleFile` says, or as elected on etcd.";
    };
    roleFile = mkOption {
      type = types.nullOr types.path;
      default = null;
      description = "The file with one line, `leader EPOCH`, `standby` or `off`, that role `follow-file` obeys.";
    };
    desired = mkOption {
      type = types.nullOr (types.attrsOf (types.listOf types.attrs));
      default = null;
      example = lib.literalExpression ''{ node1 = [ { id = "chat-0"; engine = "llamacpp"; model = { name = "chat"; source = "/models/chat.gguf"; }; } ]; }'';
      description = "What shall run where, node by node, instead of the operator API.";
    };
    etcd = mkOption {
      type = types.listOf types.str;
      default = [ ];
      example = [ "http://etcd1:2379" ];
      description = "The etcd members that elections and desired state are kept on, for role `etcd`.";
    };
    url = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "https://cp1.example:7443";
      description = "How agents and the other control planes reach this one; told when it leads.";
    };
    tls = lib.genAttrs [ "cert_file" "key_file" "ca_file" ] (name: mkOption {
      type = types.nullOr (if name == "ca_file" then types.path else types.externalPath);
      default = null;
      description = "This end's ${name}; all three or none. Agents must then have a certificate of the same CA.";
    });
    openFirewall = mkOption {
      type = types.bool;
      default = false;
      description = "Whether to open the port of `listen` in the firewall.";
    };
    extraArgs = mkOption {
      type = types.listOf types.str;
      default = [ ];
      description = "More arguments of `llmgw control`.";
    };
  };

  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = lib.elem (lib.length (lib.attrNames credentials)) [ 0 3 ];
        message = "services.llmgw-control.tls needs cert_file, key_file and ca_file together.";
      }
      {
        assertion = (cfg.role == "follow-file") == (cfg.roleFile != null);
        message = "services.llmgw-control.roleFile goes with role \"follow-file\", and only with it.";
      }
      {
        assertion = (cfg.role == "etcd") == (cfg.etcd != [ ]);
        message = "services.llmgw-control.etcd goes with role \"etcd\", and only with it.";
      }
    ];
    environment.systemPackages = [ cfg.package ];
    # followed while it runs: what is wanted changes without a restart
    environment.etc."llmgw/desired.json" = lib.mkIf (cfg.desired != null) { text = builtins.toJSON cfg.desired; };
    networking.firewall.allowedTCPPorts = lib.optional cfg.openFirewall port;
    users.groups.llmgw-control = { };
    users.users.llmgw-control = {
      isSystemUser = true;
      group = "llmgw-control";
      description = "llmgw control plane";
    };

    systemd.services.llmgw-control = {
      description = "llmgw control plane";
      wantedBy = [ "multi-user.target" ];
      wants = [ "network-online.target" ];
      after = [ "network-online.target" ];
      unitConfig.StartLimitIntervalSec = 0;
      serviceConfig = {
        ExecStart = lib.concatStringsSep " " arguments;
        User = "llmgw-control";
        Group = "llmgw-control";
        Restart = "always";
        RestartSec = 1;
        RestartPreventExitStatus = "2 78"; # a wrong flag does not become right by being read again
        StateDirectory = "llmgw-control";
        StateDirectoryMode = "0700";
        LoadCredential = lib.mapAttrsToList (name: file: "${name}:${file}") credentials;
        CapabilityBoundingSet = [ "" ];
        NoNewPrivileges = true;
        LockPersonality = true;
        MemoryDenyWriteExecute = true;
        PrivateDevices = true;
        PrivateTmp = true;
        ProtectClock = true;
        ProtectControlGroups = true;
        ProtectHome = true;
        ProtectHostname = true;
        ProtectKernelLogs = true;
        ProtectKernelModules = true;
        ProtectKernelTunables = true;
        ProtectProc = "invisible";
        ProtectSystem = "strict";
        RestrictAddressFamilies = [ "AF_UNIX" "AF_INET" "AF_INET6" "AF_NETLINK" ];
        RestrictNamespaces = true;
        RestrictRealtime = true;
        RestrictSUIDSGID = true;
        SystemCallArchitectures = "native";
        SystemCallErrorNumber = "EPERM";
        SystemCallFilter = [ "@system-service" "~@privileged @resources" ];
        UMask = "0077";
      };
    };
  };
}

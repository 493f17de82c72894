# The agent's unit, its user, its ports. Every exception from full hardening has its reason beside it.
{ config, lib, ... }:
let
  cfg = config.services.llmgw-agent;
  inherit (cfg) settings;
  certificatesRenewOnReload = lib.versionAtLeast config.systemd.package.version "260";

  # what the agent writes besides its state directories; the store is read-only anyway
  isOwn = dir: lib.any (own: dir == own || lib.hasPrefix "${own}/" dir) [ "/var/lib/llmgw" "/var/lib/llmgw-weights" builtins.storeDir ];
  written = lib.filter (dir: dir != null && !isOwn dir) (
    lib.unique (settings.model_dirs ++ [ settings.weights_cache settings.engines_dir settings.state_dir ])
  );

  range = map lib.toInt (lib.splitString "-" settings.supervisor.port_range);
  metricsPort = lib.optional (settings.metrics.listen != null) (lib.toInt (lib.last (lib.splitString ":" settings.metrics.listen)));
  ports = {
    allowedTCPPortRanges = [ { from = lib.head range; to = lib.last range; } ];
    allowedTCPPorts = metricsPort;
  };
in
{
  config = lib.mkIf cfg.enable {
    users.groups.llmgw = { };
    users.users.llmgw = {
      isSystemUser = true;
      group = "llmgw";
      extraGroups = [ "render" "video" ]; # /dev/dri, /dev/kfd
      home = "/var/lib/llmgw";
      description = "llmgw node agent";
    };

    networking.firewall = lib.mkIf cfg.openFirewall (
      if settings.mgmt_interface == null then ports else { interfaces.${settings.mgmt_interface} = ports; }
    );

    systemd.services.llmgw-agent = {
      description = "llmgw node agent";
      wantedBy = [ "multi-user.target" ];
      # Wanted, never required: a target that a switch stops would take the agent with it. And nothing is expected of it:
      # it can be reached with one network card of two up, so the address is found anew for each connection.
      wants = [ "network-online.target" ];
      after = [ "network-online.target" "systemd-modules-load.service" ];
      path = cfg.extraPath;
      # A switch that changes only the file reloads; anything else restarts, in one step. Engines live through both.
      reloadTriggers = [ cfg.configFile ];
      stopIfChanged = false;
      unitConfig = {
        StartLimitIntervalSec = 0; # a node that waits for its control plane never gives up
        # tries to mount them first; a filer that is down does not hold the agent (systemd < 256 ignores the line)
        WantsMountsFor = settings.model_dirs;
      };
      serviceConfig = {
        Type = "notify-reload";
        # the path below /etc and not the store's: what makes a reload possible
        ExecStart = "${lib.getExe cfg.package} agent --config /etc/llmgw/agent.toml --socket /run/llmgw/agent.sock";
        NotifyAccess = "main";
        User = "llmgw";
        Group = "llmgw";
        Restart = "always";
        # a wrong file does not become right by being read again: it waits for a person or for a switch
        RestartPreventExitStatus = 78;
        RestartSec = 1;
        RestartSteps = 6;
        RestartMaxDelaySec = 30;
        WatchdogSec = 30;
        TimeoutStopSec = 20;

        # Engines outlive the agent. Not DynamicUser, whose user id is given to the next service while they still run;
        # each engine has a cgroup of its own, so what KillMode leaves can still be stopped whole.
        KillMode = "process";
        Delegate = true;
        # else the restarted agent meets EBUSY: no processes beside enabled controllers
        DelegateSubgroup = "agent";
        RuntimeDirectory = "llmgw";
        RuntimeDirectoryPreserve = true;
        StateDirectory = [ "llmgw" "llmgw-weights" ];
        StateDirectoryMode = "0750";
        LoadCredential = lib.mapAttrsToList (name: file: "${name}:${file}") cfg.credentials;
        ReadWritePaths = map (d: "-${d}") written;

        OOMScoreAdjust = -900; # the exec step gives each engine a score of its own
        OOMPolicy = "continue"; # one engine's OOM spares the rest
        TasksMax = "infinity";
        LimitNOFILE = 1048576;
        LimitMEMLOCK = "infinity"; # RDMA registers its buffers, mlock pins weights

        # What the engines can live with too: with the process backend they inherit all of it.
        CapabilityBoundingSet = [ "" ];
        NoNewPrivileges = true;
        LockPersonality = true;
        ProtectSystem = "strict";
        ProtectHome = true;
        ProtectClock = true;
        ProtectHostname = true;
        ProtectKernelLogs = true;
        ProtectKernelModules = true;
        ProtectKernelTunables = true;
        ProtectProc = "invisible";
        RestrictNamespaces = true;
        RestrictRealtime = true;
        RestrictSUIDSGID = true;
        # AF_NETLINK lists the interfaces: without it the management interface cannot be found
        RestrictAddressFamilies = [ "AF_UNIX" "AF_INET" "AF_INET6" "AF_NETLINK" ];
        SystemCallArchitectures = "native";
        SystemCallErrorNumber = "EPERM";
        SystemCallFilter = [
          # @resources stays: CPU affinity and NUMA placement
          "@system-service"
          "~@privileged @debug @mount @swap @reboot @raw-io @cpu-emulation @obsolete"
          "pidfd_getfd" # torch shares GPU memory between processes with it
        ];
        UMask = "0027";
        # Left off, each for an engine or a probe:
        PrivateDevices = false; # GPUs, /dev/infiniband
        PrivateTmp = false; # a left-over engine would keep the old /tmp; and people name files in messages
        PrivateUsers = false; # group access to /dev/dri
        ProcSubset = "all"; # /proc/meminfo, /proc/loadavg
        ProtectControlGroups = false; # the engines' cgroups are made here
        MemoryDenyWriteExecute = false; # Triton and torch compile at run time
        RemoveIPC = false; # NCCL's shared memory
      } // lib.optionalAttrs certificatesRenewOnReload {
        RefreshOnReload = "credentials";
      };
    };

    # A renewed certificate reaches the agent without a hand. From systemd 260 a reload renews the copies; before, only
    # a restart does, which engines do not notice.
    systemd.paths.llmgw-agent-certificates = lib.mkIf (cfg.credentials != { }) {
      description = "certificates of the llmgw node agent";
      wantedBy = [ "multi-user.target" ];
      pathConfig.PathChanged = lib.unique (lib.attrValues cfg.credentials);
    };
    systemd.services.llmgw-agent-certificates = lib.mkIf (cfg.credentials != { }) {
      description = "hands renewed certificates to the llmgw node agent";
      serviceConfig = {
        Type = "oneshot";
        ExecStart = "${config.systemd.package}/bin/systemctl --no-block ${if certificatesRenewOnReload then "try-reload-or-restart" else "try-restart"} llmgw-agent.service";
      };
    };
  };
}

# Engines: builds that come as Nix packages, and the unit that holds one engine each under the systemd backend.
{ config, lib, pkgs, ... }:
let
  inherit (lib) mkOption types;
  cfg = config.services.llmgw-agent;

  # One folder per build, as `llmgw engines install` would lay it out. The store is read-only: a build is never changed.
  build = name: b: {
    inherit name;
    path = pkgs.runCommand "llmgw-engine-${name}"
      {
        manifest = builtins.toJSON { inherit (b) engine version binary; };
        passAsFile = [ "manifest" ];
      } ''
      mkdir -p $out
      cp "$manifestPath" $out/manifest.json
      ln -s ${b.package}/* $out/
    '';
  };
  farm = pkgs.linkFarm "llmgw-engines" (lib.mapAttrsToList build cfg.engines.packages);

  # The agent may start and stop exactly these units. A prefix alone would let it make a transient unit of that name,
  # which runs as root; a name that has a file cannot be made anew.
  mayManage = ''
    polkit.addRule(function (action, subject) {
      if (action.id === "org.freedesktop.systemd1.manage-units" &&
          subject.user === "llmgw" &&
          /^llmgw-engine@[a-z0-9][a-z0-9-]*\.service$/.test(action.lookup("unit")) &&
          ["start", "stop", "restart", "reset-failed"].indexOf(action.lookup("verb")) >= 0) {
        return polkit.Result.YES;
      }
    });
  '';
in
{
  options.services.llmgw-agent.engines.packages = mkOption {
    type = types.attrsOf (types.submodule ({ config, ... }: {
      options = {
        package = mkOption {
          type = types.package;
          description = "The package that has the engine.";
        };
        engine = mkOption {
          type = types.enum [ "llamacpp" "vllm" "sglang" "command" ];
          description = "Which kind of engine it is.";
        };
        version = mkOption {
          type = types.str;
          default = config.package.version;
          defaultText = lib.literalExpression "package.version";
          description = "The version that the agent reports.";
        };
        binary = mkOption {
          type = types.str;
          default = {
            llamacpp = "bin/llama-server";
            vllm = "bin/vllm";
            sglang = "bin/python3";
            command = "bin/${config.package.meta.mainProgram or config.package.pname}";
          }.${config.engine};
          defaultText = lib.literalMD "what the engine's kind is started with, for llamacpp `bin/llama-server`";
          description = "The program, as a path inside the package.";
        };
      };
    }));
    default = { };
    example = lib.literalExpression ''{ llamacpp-cuda = { package = pkgs.llama-cpp.override { cudaSupport = true; }; engine = "llamacpp"; }; }'';
    description = ''
      Engine builds that come as Nix packages, by the name a replica asks for. They become a folder of links that
      `settings.engines_dir` points to, so builds fetched at run time have no place beside them.
    '';
  };

  config = lib.mkIf cfg.enable (lib.mkMerge [
    {
      # /opt, the agent's own default, does not exist on NixOS: the one default that differs
      services.llmgw-agent.settings.engines_dir = lib.mkDefault (
        if cfg.engines.packages == { } then "/var/lib/llmgw/engines" else "${farm}"
      );
    }
    (lib.mkIf (cfg.settings.supervisor.backend != "process") {
      security.polkit.enable = lib.mkDefault true;
      security.polkit.extraConfig = mayManage;

      systemd.services."llmgw-engine@" = {
        description = "llmgw engine %i";
        # a new agent package must not restart what serves
        restartIfChanged = false;
        stopIfChanged = false;
        unitConfig.StartLimitIntervalSec = 0; # when to try again is the agent's to say
        serviceConfig = {
          Type = "exec";
          # a step of 9 ms that reads what the agent wrote, sets limits, and becomes the engine
          ExecStart = "${cfg.package}/libexec/llmgw-exec ${cfg.settings.state_dir}/run/%i/launch";
          User = "llmgw";
          Group = "llmgw";
          Restart = "no";
          KillMode = "mixed";
          TimeoutStopSec = 30;
          OOMPolicy = "kill";
          OOMScoreAdjust = 300;
          TasksMax = "infinity";
          LimitNOFILE = 1048576;
          LimitMEMLOCK = "infinity";
          # As the agent's, less what engines do not need; the same exceptions for the same reasons (service.nix).
          CapabilityBoundingSet = [ "" ];
          NoNewPrivileges = true;
          LockPersonality = true;
          ProtectSystem = "strict";
          ProtectHome = true;
          ProtectClock = true;
          ProtectControlGroups = true;
          ProtectHostname = true;
          ProtectKernelLogs = true;
          ProtectKernelModules = true;
          ProtectKernelTunables = true;
          RestrictNamespaces = true;
          RestrictRealtime = true;
          RestrictSUIDSGID = true;
          SystemCallArchitectures = "native";
          RemoveIPC = false;
          UMask = "0027";
          ReadWritePaths = [ cfg.settings.state_dir ];
        };
      };
    })
  ]);
}

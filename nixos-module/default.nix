# services.llmgw-agent: the options, the file made of them, and what is refused before it is deployed.
{ config, lib, pkgs, ... }:
let
  inherit (lib) mkOption types;
  cfg = config.services.llmgw-agent;
  inherit (cfg) settings;
  at = key: "services.llmgw-agent.settings.${key}";

  keys = import ./from-schema.nix { inherit lib; schema = lib.importJSON ./schema.json; };

  # mapSecrets f settings: f NAME FILE for every key that names a secret file; NAME is the key's path, "weights.mirrors.0.key_file".
  mapSecrets = f:
    let
      walk = path: pattern: v:
        if lib.isAttrs v then lib.mapAttrs (name: walk (path ++ [ name ]) (pattern ++ [ name ])) v
        else if lib.isList v then lib.imap0 (i: walk (path ++ [ (toString i) ]) (pattern ++ [ "*" ])) v
        else if v != null && lib.elem pattern keys.secrets then f (lib.concatStringsSep "." path) v
        else v;
    in
    walk [ ] [ ];

  # Root reads the files and the unit sees copies that only it can read, under a path systemd documents; so the agent
  # needs to know nothing of credentials, and the files may belong to whoever makes them.
  credentials =
    let
      collect = v:
        if v ? credential then [ { ${v.credential} = v.file; } ]
        else if lib.isAttrs v then lib.concatMap collect (lib.attrValues v)
        else if lib.isList v then lib.concatMap collect v
        else [ ];
      named = mapSecrets (credential: file: { inherit credential; file = toString file; }) settings;
    in
    lib.foldl' (all: one: all // one) { } (collect named);
  written = keys.write (mapSecrets (name: _: "/run/credentials/llmgw-agent.service/${name}") settings);

  unchecked = (pkgs.formats.toml { }).generate "agent.toml" written;
  # The agent's own checker, not a second copy of its rules in Nix. It opens nothing but this file.
  checked = pkgs.runCommand "agent-checked.toml" { nativeBuildInputs = [ cfg.package ]; passthru = { inherit unchecked; value = written; }; } ''
    llmgw check ${unchecked}
    cp ${unchecked} $out
  '';
  # an image for another processor cannot run the agent while it is built
  canCheck = pkgs.stdenv.buildPlatform.canExecute pkgs.stdenv.hostPlatform;

  servers = lib.optional (settings.server or null != null && settings.server or null != "") settings.server ++ settings.servers;
  having = scheme: lib.filter (s: lib.hasPrefix "${scheme}://" (lib.toLower s)) servers;
  tlsFiles = { inherit (settings.tls) cert_file key_file ca_file; };
  missing = lib.attrNames (lib.filterAttrs (_: file: file == null) tlsFiles);
  tlsOn = missing == [ ];
  tlsHalf = !tlsOn && lib.length missing < 3;

  inHome = lib.filter (d: lib.any (h: d == h || lib.hasPrefix "${h}/" d) [ "/home" "/root" "/run/user" ]) settings.model_dirs;
in
{
  imports = [ ./service.nix ./engines.nix ];

  options.services.llmgw-agent = {
    enable = lib.mkEnableOption "the llmgw node agent";
    package = lib.mkPackageOption pkgs "llmgw-agent" { };
    settings = mkOption {
      type = types.submodule { inherit (keys) options; };
      default = { };
      example = lib.literalExpression ''{ servers = [ "cp1:7443" "cp2:7443" ]; }'';
      description = ''
        The agent's configuration file, key for key: every key is an option under its own name. A key left at null is
        not written. A key that names a secret file takes a path outside the store; systemd hands the unit a copy.
      '';
    };
    checkConfig = mkOption {
      type = types.bool;
      default = true;
      description = ''
        Whether the file is read by the agent's own checker while the system is built, so that a wrong value fails the
        build and not the boot. The checker opens no other file and resolves no name.
      '';
    };
    openFirewall = mkOption {
      type = types.bool;
      default = false;
      description = ''
        Whether to open the engines' ports (`supervisor.port_range`) and the port of `metrics.listen` in the firewall: on
        `mgmt_interface` alone if that is set.
      '';
    };
    extraPath = mkOption {
      type = types.listOf types.package;
      default = [ ];
      example = lib.literalExpression "[ pkgs.cudaPackages.cuda_nvcc ]";
      description = "Packages whose programs the agent and its engines find on PATH.";
    };
    configFile = mkOption {
      type = types.path;
      readOnly = true;
      description = "The file that was made of `settings`, checked if `checkConfig` is set.";
    };
    credentials = mkOption {
      type = types.attrsOf types.str;
      internal = true;
      readOnly = true;
      description = "The files that are handed to the unit, by credential name.";
    };
  };

  config = lib.mkMerge [
    {
      services.llmgw-agent = {
        inherit credentials;
        configFile = if cfg.checkConfig && canCheck then checked else unchecked;
      };
    }
    (lib.mkIf cfg.enable {
      # The four rules whose message should name an option. All others live in the agent's checker.
      assertions = [
        {
          assertion = servers != [ ];
          message = "${at "servers"} is empty: name at least one control plane, for example [ \"cp1:7443\" ].";
        }
        {
          assertion = !tlsHalf;
          message = "${at "tls"} needs cert_file, key_file and ca_file together; missing ${lib.concatStringsSep ", " (lib.filter (k: lib.elem k missing) [ "cert_file" "key_file" "ca_file" ])}.";
        }
        {
          assertion = tlsOn || tlsHalf || having "https" == [ ];
          message = "${at "servers"}: ${lib.concatStringsSep ", " (having "https")} is an https:// address but no tls certificates are configured; set ${at "tls"}.";
        }
        {
          assertion = !tlsOn || having "http" == [ ];
          message = "${at "servers"}: tls is configured but ${lib.concatStringsSep ", " (having "http")} is an http:// address; use https:// or leave the scheme out.";
        }
      ];
      warnings =
        lib.optional (inHome != [ ])
          "${at "model_dirs"}: ${lib.concatStringsSep ", " inHome} lies in a home directory, which the unit cannot see (ProtectHome)."
        ++ lib.optional (settings.server or null != null && settings.servers != [ ])
          "${at "server"} and ${at "servers"} are both set: they are read as one list, `server` first. Write one list.";

      environment.etc."llmgw/agent.toml".source = cfg.configFile;
      environment.systemPackages = [ cfg.package ];
    })
  ];
}

# What a configuration comes to, by the stand-in alone: evaluate.nix --argstr settings JSON
# files: more modules; each says with imports what else it needs.
{ settings ? "{}", files ? "[]", report ? "module" }:
let
  lib = import ./lib.nix;
  pkgs = import ./pkgs.nix { inherit lib; };
  evaluate = modules: (lib.evalModules {
    specialArgs = { inherit pkgs; modulesPath = toString ./.; };
    modules = [ { systemd.package = pkgs.systemd; } ] ++ modules;
  });
  given = map (path: /. + path) (builtins.fromJSON files);

  module = evaluate ([ ../../nixos-module ../../nixos-module/control.nix (builtins.fromJSON settings) ] ++ given);
  cfg = module.config;

  # Every option below a type or a set of options, under the path an operator would write.
  flatten = path: o:
    if o._type or null == "option" then
      [ ({ path = lib.concatStringsSep "." path; description = o.description or null; } // lib.optionalAttrs (o ? default) { default = o.default; }) ]
      ++ lib.optionals (o.type.options or null != null) (flatten (path ++ (o.type.below or [ ])) o.type.options)
    else lib.concatLists (lib.mapAttrsToList (name: flatten (path ++ [ name ])) o);
in
{
  options = flatten [ ] (import ../../nixos-module/from-schema.nix {
    inherit lib;
    schema = lib.importJSON ../../nixos-module/schema.json;
  }).options;

  module = {
    refused = map (a: a.message) (lib.filter (a: !a.assertion) cfg.assertions);
    warnings = cfg.warnings or [ ];
    inherit (cfg.services.llmgw-agent) credentials;
    file = cfg.services.llmgw-agent.configFile.value;
    checkedBy = cfg.services.llmgw-agent.configFile.script or null;
    units = cfg.systemd.services;
    paths = cfg.systemd.paths or { };
    hostName = cfg.networking.hostName or null;
    firewall = cfg.networking.firewall or { };
    polkit = cfg.security.polkit.extraConfig or "";
  };
}.${report}

# The files of packaging/debian, from the NixOS module: one unit, wherever it runs. `python3 packaging/generate.py` writes them.
let
  lib = import ../tests/nix/lib.nix;
  pkgs = import ../tests/nix/pkgs.nix { inherit lib; };
  render = import ./render.nix { inherit lib; };
  cfg = (lib.evalModules {
    specialArgs = { inherit pkgs; };
    modules = [
      ../nixos-module
      ../nixos-module/control.nix
      {
        systemd.package = pkgs.systemd;
        services.llmgw-agent = {
          enable = true;
          settings = { servers = [ "cp1" ]; engines_dir = "/opt/llmgw/engines"; };
        };
        services.llmgw-control.enable = true;
      }
    ];
  }).config;
  user = name: home: groups: "u ${name} - \"${cfg.users.users.${name}.description}\" ${home}\n" + lib.concatMapStrings (g: "m ${name} ${g}\n") groups;
in
{
  "llmgw-agent.service" = render.service cfg.systemd.services.llmgw-agent;
  "llmgw-engine@.service" = render.service cfg.systemd.services."llmgw-engine@";
  "llmgw-control.service" = render.service cfg.systemd.services.llmgw-control;
  "10-llmgw.rules" = cfg.security.polkit.extraConfig;
  "llmgw.sysusers" =
    user "llmgw" "/var/lib/llmgw" cfg.users.users.llmgw.extraGroups
    + user "llmgw-control" "/var/lib/llmgw-control" [ ];
}

# The light runner's nodes.json, made by a bare Nix without nixpkgs: see README.md.
let
  lib = import ../../tests/nix/lib.nix;
  pkgs = import ../../tests/nix/pkgs.nix { inherit lib; };
  self.nixosModules = rec { llmgw-agent = ../../nixos-module; llmgw-control = ../../nixos-module/control.nix; default = llmgw-agent; };
  fleet = import ../lib/fleet.nix { inherit lib self; } // { test = about: { lite = null; nowhereElse = false; } // about; };
  describe = import ./describe.nix { inherit lib; };

  evaluate = about: name: node: (lib.evalModules {
    specialArgs = { inherit pkgs; };
    modules = [ { systemd.package = pkgs.systemd; environment.etc = { }; } (about.defaults or { }) node ];
  }).config;
  files = lib.filter (name: lib.hasSuffix ".nix" name && name != "default.nix") (lib.attrNames (builtins.readDir ../.));
  one = file:
    let about = import (../. + "/${file}") { inherit fleet; }; in
    if about.nowhereElse then { skipped = about.lite; }
    else lib.optionalAttrs (about.lite != null) { skipped = about.lite; } // {
      script = [ "lib/prelude.py" (baseNameOf about.script) ];
      nodes = describe (lib.mapAttrs (evaluate about) about.nodes);
    };
in
lib.listToAttrs (map (file: { name = lib.removeSuffix ".nix" file; value = one file; }) files)

# Every file beside this one is a test of one promise; adding a file adds a test.
{ lib, pkgs, self }:
let
  files = lib.filterAttrs (name: kind: kind == "regular" && lib.hasSuffix ".nix" name && name != "default.nix") (builtins.readDir ./.);
in
lib.mapAttrs'
  (file: _: lib.nameValuePair (lib.removeSuffix ".nix" file) (pkgs.testers.runNixOSTest {
    imports = [ (import (./. + "/${file}") { fleet = import ./lib/fleet.nix { inherit lib self; }; }) ];
  }))
  files

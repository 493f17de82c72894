# The stand-in's packages: text that would be built is kept as a value, to be looked at.
{ lib }:
let
  made = name: about: { type = "derivation"; inherit name; pname = name; version = "0"; outPath = "/made/${name}"; } // about;
in
{
  inherit lib;
  llmgw-agent = made "llmgw" { outPath = "/opt/llmgw"; meta.mainProgram = "llmgw"; };
  systemd = made "systemd" { version = "257"; outPath = "/usr"; };
  stdenv = { buildPlatform.canExecute = _: true; hostPlatform = { }; };
  formats.toml = _: { generate = name: value: made name { about = { inherit value; }; }; };
  runCommand = name: about: script: made name { inherit about script; };
  linkFarm = name: entries: made name { inherit entries; };
  writeText = name: text: made name { inherit text; };
}

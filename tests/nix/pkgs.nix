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
  formats.toml = _: { generate = name: value: made name { inherit value; }; };
  python3 = made "python3" { outPath = "/usr"; withPackages = _: made "python3-with-packages" { }; };
  nftables = made "nftables" { };
  nginx = made "nginx" { outPath = "/opt/nginx"; };
  openssl = made "openssl" { };
  llama-cpp = made "llama-cpp" { outPath = "/opt/llama-cpp"; };
  runCommand = name: about: script: made name ({ inherit script; } // about.passthru or { });
  linkFarm = name: entries: made name { inherit entries; };
  writeText = name: text: made name { inherit text; };
}

# What `nix flake check` proves of the module and the package; the VM tests are beside them.
{ lib, pkgs, self }:
let
  inherit (pkgs.stdenv.hostPlatform) system;
  evaluate = modules: lib.nixosSystem {
    modules = [
      self.nixosModules.default
      self.nixosModules.llmgw-control
      {
        nixpkgs.hostPlatform = system;
        boot.loader.grub.enable = false;
        fileSystems."/" = { device = "none"; fsType = "tmpfs"; };
        system.stateVersion = "25.05";
      }
    ] ++ modules;
  };
  agent = settings: { services.llmgw-agent = { enable = true; inherit settings; }; };
  refused = node: map (a: a.message) (lib.filter (a: !a.assertion) node.config.assertions);

  # the same table that the agent's own tests read
  cases = lib.importJSON ../tests/data/server-cases.json;
  wrong = lib.concatMap
    (case:
      let said = refused (evaluate [ (agent case.settings) ]); in
      lib.optional (said != lib.optional (case ? option) case.option) "${case.name}: ${builtins.toJSON said}")
    cases;

  example = evaluate [ ./example.nix ];
  unit = example.config.systemd.units."llmgw-agent.service".unit;
  options = pkgs.nixosOptionsDoc {
    options.services = { inherit (example.options.services) llmgw-agent llmgw-control; };
    warningsAreErrors = true;
  };
in
{
  unit-tests = self.packages.${system}.default;

  module-eval = if wrong == [ ] then pkgs.emptyFile else throw "assertions differ: ${lib.concatStringsSep "; " wrong}";

  # built, and with it read by the agent's own checker
  module-config = example.config.environment.etc."llmgw/agent.toml".source;

  # legal for every option's type, and wrong all the same: the build has to fail with the agent's own message
  module-bad-config =
    let
      bad = (evaluate [ (agent { servers = [ "ftp://cp1" ]; }) ]).config.environment.etc."llmgw/agent.toml".source;
      failed = pkgs.testers.testBuildFailure bad;
    in
    pkgs.runCommand "module-bad-config" { } ''
      grep -F 'must be an http:// or https:// address' ${failed}/testBuildFailure.log
      [[ $(cat ${failed}/testBuildFailure.exit) = 78 ]]
      touch $out
    '';

  unit-file = pkgs.runCommand "unit-file" { nativeBuildInputs = [ pkgs.systemd ]; } ''
    cp ${unit}/llmgw-agent.service .
    systemd-analyze verify --man=no --recursive-errors=no ./llmgw-agent.service
    systemd-analyze security --offline=true --threshold=25 --no-pager ./llmgw-agent.service
    touch $out
  '';

  options-doc = options.optionsCommonMark;

  formatting = pkgs.runCommand "formatting" { nativeBuildInputs = [ pkgs.ruff ]; } ''
    cd ${self}
    RUFF_CACHE_DIR=$TMPDIR ruff format --check .
    touch $out
  '';
}

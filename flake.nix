{
  description = "A node agent that turns bare-metal machines into one LLM serving fleet";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs = { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;
      eachSystem = f: lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] (system: f nixpkgs.legacyPackages.${system});
      # a path import keeps file positions in messages and is loaded once however often it is named
      withPackage = service: module: { pkgs, ... }: {
        imports = [ module ];
        services.${service}.package = lib.mkDefault self.packages.${pkgs.stdenv.hostPlatform.system}.default;
      };
      # NixOS builds images itself since 25.05
      canImage = builtins.pathExists "${nixpkgs}/nixos/modules/image/images.nix";
      node = system: lib.nixosSystem {
        modules = [ self.nixosModules.default ./nixos-module/node-image.nix { nixpkgs.hostPlatform = system; } ];
      };
      images = system: lib.optionalAttrs canImage (
        lib.genAttrs [ "raw" "iso" "qemu" ] (variant: (node system).config.system.build.images.${variant})
      );
    in
    {
      packages = eachSystem (pkgs:
        let inherit (pkgs.stdenv.hostPlatform) system; in
        rec {
          llmgw-agent = pkgs.callPackage ./package.nix { };
          default = llmgw-agent;
        }
        // lib.mapAttrs' (variant: lib.nameValuePair "node-image-${variant}") (images system));

      overlays.default = final: _: { llmgw-agent = final.callPackage ./package.nix { }; };

      nixosModules = rec {
        llmgw-agent = withPackage "llmgw-agent" ./nixos-module;
        llmgw-control = withPackage "llmgw-control" ./nixos-module/control.nix;
        default = llmgw-agent;
      };

      nixosConfigurations.example = lib.nixosSystem {
        modules = [
          self.nixosModules.default
          ./nixos-module/example.nix
          {
            nixpkgs.hostPlatform = "x86_64-linux";
            boot.loader.systemd-boot.enable = true;
            fileSystems."/" = { device = "/dev/disk/by-label/nixos"; fsType = "ext4"; };
            fileSystems."/boot" = { device = "/dev/disk/by-label/ESP"; fsType = "vfat"; };
            system.stateVersion = "25.05";
          }
        ];
      };

      checks = eachSystem (pkgs: import ./nixos-module/checks.nix { inherit lib pkgs self; }
        // lib.mapAttrs' (name: lib.nameValuePair "vm-${name}") (import ./vm-tests { inherit lib pkgs self; }));

      apps = eachSystem (pkgs: rec {
        demo = {
          type = "app";
          program = lib.getExe (pkgs.writeShellScriptBin "llmgw-demo" ''
            export PATH=${lib.makeBinPath [ pkgs.llama-cpp ]}:$PATH
            exec ${lib.getExe self.packages.${pkgs.stdenv.hostPlatform.system}.default} up --demo "$@"
          '');
          meta.description = "A control plane, an agent and a real engine on this machine, and a first answer";
        };
        default = demo;
      });

      devShells = eachSystem (pkgs: {
        default = pkgs.mkShell {
          inputsFrom = [ self.packages.${pkgs.stdenv.hostPlatform.system}.default ];
          packages = [ pkgs.basedpyright pkgs.iproute2 pkgs.nftables pkgs.python3Packages.import-linter pkgs.ruff ];
        };
      });

      formatter = eachSystem (pkgs: pkgs.nixfmt-tree);
    };
}

# One image for every node: it names none. The host name comes from DHCP and with it the node's identity; the control
# plane is the one name written here, resolved in the site's own search domain.
{ lib, modulesPath, ... }:
{
  imports = [ "${modulesPath}/profiles/all-hardware.nix" ];

  networking.hostName = lib.mkDefault "";
  networking.useDHCP = lib.mkDefault true;
  services.openssh.enable = lib.mkDefault true;
  hardware.enableRedistributableFirmware = lib.mkDefault true;
  system.stateVersion = lib.mkDefault "25.05";

  services.llmgw-agent = {
    enable = true;
    openFirewall = lib.mkDefault true;
    settings.servers = lib.mkDefault [ "llmgw-control:7443" ];
  };
}

# The node image: it names no node. Booted, it registers under the host name that the site gives it.
{ fleet }:
fleet.test {
  name = "image";
  lite = "an image boots with NixOS's own start-up";
  nowhereElse = true;
  nodes = {
    llmgw-control = fleet.controlPlane { role = "leader 1"; };
    machine1 = { lib, ... }: {
      imports = [ fleet.image ];
      # the driver gives every machine a name, and the site's DHCP gives this one: said by the kernel's command line here
      networking.hostName = lib.mkForce "";
      boot.kernelParams = [ "systemd.hostname=node-17" ];
    };
  };
  script = ./image.py;
}

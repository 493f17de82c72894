# The address a node announces is the one on its route to the control plane it is with, whatever its cards are called.
{ fleet }:
let
  # vlan 1: management, 2: storage, 3: fabric, 4: a card that comes late
  second = fleet.controlPlane { role = "standby"; config.virtualisation.vlans = [ 2 ]; };
in
fleet.test {
  name = "mgmt-address";
  nodes = {
    agent1 = fleet.agent {
      settings.servers = [ "cp1:7443" "cp2:7443" "cp3:7443" "[2001:db8:3::5]:7443" "192.168.100.4:7443" ];
      config = {
        virtualisation.vlans = [ ];
        virtualisation.interfaces = {
          # bond0 and mgmt.100 are names of cards here; a real bond and a real VLAN are made by the script where the kernel has them
          "mgmt.100" = { vlan = 1; assignIP = true; };
          bond0 = { vlan = 2; assignIP = true; };
          ibp65s0 = { vlan = 3; assignIP = true; };
          late0 = { vlan = 4; };
        };
      };
    };
    cp1 = fleet.controlPlane { role = "leader 1"; };
    cp2 = second;
    cp3 = fleet.controlPlane { role = "standby"; config.virtualisation.vlans = [ 4 ]; };
    cp4 = fleet.controlPlane { role = "standby"; config.virtualisation.vlans = [ 3 ]; };
  };
  script = ./mgmt-address.py;
}

# What the light runner has to know of a test: each node's networks, and what is on it because of our modules.
#
# lite/nodes.nix evaluates it without nixpkgs; that nodes.json is what comes of it is tested wherever there is a Nix
# (tests/nix/test_generated.py), and in CI by `make generate`.
{ lib, render ? import ../../packaging/render.nix { inherit lib; }, plain ? (text: text) }:
let
  isOurs = name: _: lib.hasPrefix "llmgw" name;
  ours = lib.filterAttrs isOurs;

  # in attribute-name order, from 1, as the driver numbers them
  network = number: c:
    let
      vlans = c.virtualisation.vlans or [ 1 ];
      more = c.virtualisation.interfaces or { };
      addresses = vlan: [ "192.168.${toString vlan}.${toString number}/24" "2001:db8:${toString vlan}::${toString number}/64" ];
      byNumber = lib.imap1 (i: vlan: { name = "eth${toString i}"; inherit vlan; addresses = addresses vlan; }) vlans;
      byName = lib.mapAttrsToList (name: i: { inherit name; inherit (i) vlan; addresses = lib.optionals (i.assignIP or false) (addresses i.vlan); }) more;
    in
    if more == { } then byNumber else lib.filter (i: !(more ? ${i.name})) (if c.virtualisation ? vlans then byNumber else [ ]) ++ byName;

  # Debian's etcd in the place of NixOS's, as the node's services.etcd says
  etcd = e: {
    "llmgw-etcd.service" = ''
      [Service]
      Type=notify
      User=nobody
      StateDirectory=llmgw-etcd
      ExecStart=/usr/bin/etcd --name ${e.name} --data-dir /var/lib/llmgw-etcd ${lib.concatStringsSep " " [
        "--listen-client-urls ${lib.concatStringsSep "," e.listenClientUrls}"
        "--advertise-client-urls ${lib.concatStringsSep "," e.advertiseClientUrls}"
        "--listen-peer-urls ${lib.concatStringsSep "," e.listenPeerUrls}"
        "--initial-advertise-peer-urls ${lib.concatStringsSep "," e.initialAdvertisePeerUrls}"
        "--initial-cluster ${lib.concatStringsSep "," e.initialCluster}"
      ]}
      Restart=always
    '';
  };

  node = nodes: number: c:
    let
      services = ours (c.systemd.services or { });
      paths = ours (c.systemd.paths or { });
      hasEtcd = c.services.etcd.enable or false;
      named = suffix: lib.mapAttrs' (name: v: { name = "${name}.${suffix}"; value = v; });
      wanted = suffix: set: map (name: "${name}.${suffix}") (lib.attrNames (lib.filterAttrs (_: u: lib.elem "multi-user.target" (u.wantedBy or [ ])) set));
    in
    {
      inherit number;
      interfaces = network number c;
      hosts = nodes.hosts;
      units =
        named "service" (lib.mapAttrs (_: u: plain (render.service u)) services)
        // named "path" (lib.mapAttrs (_: u: plain (render.path u)) paths)
        // lib.optionalAttrs hasEtcd (etcd c.services.etcd);
      wants = wanted "service" services ++ wanted "path" paths ++ lib.optional hasEtcd "llmgw-etcd.service";
      etc = lib.mapAttrs (_: e: plain e.text) (lib.filterAttrs (name: e: isOurs name e && e.text or null != null) c.environment.etc);
      config = if c.services.llmgw-agent.enable or false then builtins.fromJSON (plain (builtins.toJSON c.services.llmgw-agent.configFile.value)) else null;
      users = lib.mapAttrs (_: u: { home = if lib.hasPrefix "/var/lib" (toString (u.home or "")) then u.home else "/"; groups = u.extraGroups or [ ]; }) (ours (c.users.users or { }));
      tmpfiles = lib.filter (lib.hasInfix "llmgw") (c.systemd.tmpfiles.rules or [ ]);
      polkit = lib.optionalString (services ? "llmgw-engine@") (c.security.polkit.extraConfig or "");
    };
in
# configs: the evaluated configuration of every node
configs:
let
  names = lib.attrNames configs;
  number = lib.listToAttrs (lib.imap1 (i: name: { inherit name; value = i; }) names);
  first = name: lib.head (lib.head (network number.${name} configs.${name})).addresses;
  host = name:
    let has = (lib.head (network number.${name} configs.${name})).addresses; in
    lib.optionalString (has != [ ]) "${lib.head (lib.splitString "/" (first name))} ${name}\n";
  hosts = lib.concatMapStrings host names;
in
lib.mapAttrs (name: c: node { inherit hosts; } number.${name} c) configs

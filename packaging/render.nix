# A service of ours as the text of a unit: for machines without NixOS (packaging/), and for the guests of vm-tests/lite.
{ lib }:
let
  shown = v: if v == true then "true" else if v == false then "false" else toString v;
  line = key: v: if lib.isList v then map (x: "${key}=${shown x}") v else [ "${key}=${shown v}" ];
  section = name: settings:
    let lines = lib.concatLists (lib.mapAttrsToList line (lib.filterAttrs (_: v: v != null && v != [ ]) settings)); in
    lib.optionals (lines != [ ]) ([ "" "[${name}]" ] ++ lines);
  # what NixOS adds to every unit by itself
  own = lib.filterAttrs (key: _: !lib.elem key [ "After" "Before" "BindsTo" "Description" "Documentation" "PartOf" "Requires" "Wants" ] && !lib.hasPrefix "X-" key);
  unit = u: section "Unit" (
    { Description = u.description; }
    // lib.optionalAttrs (u.wants or [ ] != [ ]) { Wants = lib.concatStringsSep " " u.wants; }
    // lib.optionalAttrs (u.after or [ ] != [ ]) { After = lib.concatStringsSep " " u.after; }
    // own (u.unitConfig or { })
  );
  install = u: section "Install" (lib.optionalAttrs (u.wantedBy or [ ] != [ ]) { WantedBy = lib.concatStringsSep " " u.wantedBy; });
  text = lines: lib.concatMapStrings (l: "${l}\n") (if lib.head lines == "" then builtins.tail lines else lines);
in
{
  service = u: text (unit u ++ section "Service" (own u.serviceConfig) ++ install u);
  path = u: text (unit u ++ section "Path" u.pathConfig ++ install u);
}

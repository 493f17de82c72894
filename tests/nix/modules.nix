# The stand-in's module system, as much of it as our modules lean on: imports, options, mkIf, mkMerge, priorities and
# submodules. Options that nobody declared here (all of NixOS's own) take any value, merged attribute by attribute.
{ lib }:
let
  inherit (builtins) all any attrNames concatMap filter foldl' head isAttrs isFunction isList isString length mapAttrs removeAttrs;

  wrapper = d: if isAttrs d then d._type or null else null;
  isOption = o: isAttrs o && o._type or null == "option";
  isSet = v: isAttrs v && !(v ? outPath) && wrapper v == null;

  # mkIf and friends around a whole set move down to its members, so that a name is known before its condition is.
  sink = d: {
    "if" = map (mapAttrs (_: lib.mkIf d.condition)) (sink d.content);
    merge = concatMap sink d.contents;
    override = map (mapAttrs (_: lib.mkOverride d.priority)) (sink d.content);
  }.${toString (wrapper d)} or [ d ];

  inside = d: {
    "if" = inside d.content;
    merge = concatMap inside d.contents;
    override = inside d.content;
  }.${toString (wrapper d)} or [ d ];

  discharge = priority: d: {
    "if" = if d.condition then discharge priority d.content else [ ];
    merge = concatMap (discharge priority) d.contents;
    override = discharge d.priority d.content;
  }.${toString (wrapper d)} or [ { inherit priority; value = d; } ];
  values = defs:
    let
      found = concatMap (discharge 100) defs;
      best = foldl' (least: d: if d.priority < least then d.priority else least) 9999 found;
    in
    map (d: d.value) (filter (d: d.priority == best) found);

  typed = type: path: defs:
    let
      given = values defs;
      wrong = filter (v: !type.check v) given;
    in
    if wrong != [ ] then
      throw "A definition for option `${path}' is not of type `${type.description}'. Definition values: ${builtins.toJSON (head wrong)}"
    else type.merge path given;

  below = path: name: if path == "" then name else "${path}.${name}";

  merged = path: declared: defs:
    if isOption declared then
      if values defs != [ ] then typed declared.type path defs
      else if declared ? default then typed declared.type path [ declared.default ]
      else throw "The option `${path}' was accessed but has no value defined. Try setting the option."
    else if declared != { } || all isSet (concatMap inside defs) then
      let
        sets = concatMap sink defs;
        of = name: concatMap (s: lib.optional (s ? ${name}) s.${name}) sets;
        names = lib.unique (attrNames declared ++ concatMap attrNames sets);
        isClosed = any isOption (builtins.attrValues declared);
        # at the top every name stays: the conditions there are read from this very set
        known = filter
          (name: path == "" || declared ? ${name} || (if isClosed then throw "The option `${below path name}' does not exist." else values (of name) != [ ]))
          names;
      in
      lib.genAttrs known (name: merged (below path name) (declared.${name} or { }) (of name))
    else
      let given = values defs; in
      if length given == 1 || all (v: v == head given) given then head given
      else if all isList given then builtins.concatLists given
      else if all isString given then lib.concatStringsSep "\n" given
      else throw "The option `${path}' has conflicting definition values.";

  read = args: module:
    let
      m = if isFunction module then module args else if isAttrs module then module else read' (import module);
      read' = m': if isFunction m' then m' args else m';
      split = m ? options || m ? config;
    in
    concatMap (read args) (m.imports or [ ]) ++ [
      {
        options = m.options or { };
        config = if split then m.config or { } else removeAttrs m [ "imports" ];
      }
    ];
in
{
  inherit typed;
  evalModules = { modules, prefix ? "", specialArgs ? { } }:
    let
      args = { inherit lib config options; } // specialArgs;
      parts = concatMap (read args) modules;
      options = foldl' lib.recursiveUpdate { } (map (p: p.options) parts);
      config = merged prefix options (map (p: p.config) parts);
    in
    { inherit config options; };
}

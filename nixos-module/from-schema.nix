# The keys of the configuration file as NixOS options, made from the schema while Nix evaluates.
#
# A key is an option of the same name with the same default and the same sentence; null means "not written". A group of
# keys is a closed submodule, so that a typo is refused with "did you mean" and the members are documented one by one.
# Anything this file has no NixOS type for stops the evaluation: a key that silently became "any value" would be checked
# only on the node.
{ lib, schema }:
let
  inherit (lib) types;

  deref = s:
    if s ? "$ref"
    then schema."$defs".${lib.removePrefix "#/$defs/" s."$ref"} // removeAttrs s [ "$ref" ]
    else s;
  isNull = s: s.type or null == "null";
  isGroup = s: s.type or null == "object" && s ? properties;
  members = s: map deref (s.anyOf or [ s ]);

  described = type: description: type // { inherit description; descriptionClass = "noun"; };

  # `strMatching` matches the whole string, so the anchors of a pattern go.
  matching = pattern: types.strMatching (lib.removeSuffix "$" (lib.removePrefix "^" pattern));

  # What JSON has no word for, by the schema's "x-nix-type".
  named = {
    duration = s: described (matching s.pattern) "duration such as \"5s\" or \"1m30s\"";
    size = s: described
      (types.either types.ints.unsigned (matching s.pattern))
      "size such as \"8GiB\", or a number of bytes";
    path = _: types.path;
    # not in the store, which everybody can read
    secretPath = _: types.externalPath;
  };

  # Both ends of a range, with the words that the refusal shows.
  bounds = {
    minimum = low: { says = "at least ${toString low}"; holds = x: x >= low; };
    exclusiveMinimum = low: { says = "greater than ${toString low}"; holds = x: x > low; };
    maximum = high: { says = "at most ${toString high}"; holds = x: x <= high; };
    exclusiveMaximum = high: { says = "less than ${toString high}"; holds = x: x < high; };
  };
  bounded = type: s:
    let given = map (name: bounds.${name} s.${name}) (lib.filter (name: s ? ${name}) (lib.attrNames bounds)); in
    if given == [ ] then type
    else described
      (types.addCheck type (x: lib.all (bound: bound.holds x) given))
      "${type.description}, ${lib.concatMapStringsSep " and " (bound: bound.says) given}";

  plain = path: s:
    if s ? "x-nix-type" then named.${s."x-nix-type"} s
    else if s ? enum then types.enum s.enum
    else if isGroup s then types.submodule { options = group path s; }
    else {
      string =
        if s ? pattern then matching s.pattern
        else if s.minLength or 0 > 0 then types.nonEmptyStr
        else types.str;
      integer = bounded types.int s;
      number = bounded types.number s;
      boolean = types.bool;
      array = types.listOf (toType (path ++ [ "*" ]) s.items);
      object = types.attrsOf (toType (path ++ [ "<name>" ]) s.additionalProperties);
    }.${s.type or "?"} or (throw "schema: no NixOS type for ${lib.concatStringsSep "." path}: ${builtins.toJSON s}");

  toType = path: unread:
    let
      s = deref unread;
      some = map (plain path) (lib.filter (m: !isNull m) (members s));
      type = if lib.length some == 1 then lib.head some else types.oneOf some;
    in
    if lib.any isNull (members s) then types.nullOr type else type;

  option = path: required: unread:
    let s = deref unread; in
    lib.mkOption (
      {
        type = toType path unread;
        description = s.description or (throw "schema: ${lib.concatStringsSep "." path} has no description");
      }
      // lib.optionalAttrs (!required) { default = if isGroup s then { } else s.default or null; }
      // lib.optionalAttrs (s ? examples) { example = lib.head s.examples; }
    );

  group = path: s: lib.mapAttrs (name: option (path ++ [ name ]) (lib.elem name (s.required or [ ]))) s.properties;

  # What is written of a value: only what differs from the agent's default, for defaults belong to the agent. TOML has no
  # null, so none may be left anywhere, in lists of tables neither.
  write = s: value:
    let
      differs = name: v: v != null && (lib.elem name (s.required or [ ]) || v != (deref s.properties.${name}).default or null);
    in
    lib.filterAttrs (_: v: v != { }) (lib.mapAttrs (name: writeMember s.properties.${name}) (lib.filterAttrs differs value));
  writeMember = unread: v:
    let s = deref unread; in
    if isGroup s then write s v
    else if lib.isList v then map (writeMember s.items or { }) v
    else v;

  # The keys that name a secret file, as paths; "*" stands for every element of a list.
  secretsIn = path: unread:
    lib.concatMap
      (m:
        if isGroup m then lib.concatLists (lib.mapAttrsToList (name: secretsIn (path ++ [ name ])) m.properties)
        else if m.type or null == "array" then secretsIn (path ++ [ "*" ]) m.items
        else lib.optional (m."x-nix-type" or null == "secretPath") path)
      (members (deref unread));
in
{
  options = group [ ] (deref schema);
  secrets = secretsIn [ ] schema;
  write = write (deref schema);
}

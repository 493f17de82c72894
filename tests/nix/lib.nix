# A stand-in for the functions of nixpkgs' lib that this project's own files use, so that they are evaluated wherever
# there is a Nix and nothing else. What is not here is not used; whoever uses more adds it here.
let
  inherit (builtins)
    all any attrNames attrValues concatLists concatMap concatStringsSep elem elemAt filter foldl' genList getAttr hasAttr
    head isAttrs isBool isFloat isFunction isInt isList isString length listToAttrs mapAttrs match removeAttrs replaceStrings
    split stringLength substring tail toJSON;

  lib = rec {
    inherit
      all any attrNames attrValues concatLists concatMap concatStringsSep elem elemAt filter foldl' getAttr hasAttr head isAttrs
      isFunction isList isString length mapAttrs tail toJSON;

    id = x: x;
    importJSON = path: builtins.fromJSON (builtins.readFile path);
    optional = yes: x: if yes then [ x ] else [ ];
    optionals = yes: xs: if yes then xs else [ ];
    optionalAttrs = yes: set: if yes then set else { };
    optionalString = yes: text: if yes then text else "";
    last = xs: elemAt xs (length xs - 1);
    unique = foldl' (seen: x: if elem x seen then seen else seen ++ [ x ]) [ ];
    imap0 = f: xs: genList (i: f i (elemAt xs i)) (length xs);
    imap1 = f: imap0 (i: f (i + 1));
    toList = x: if isList x then x else [ x ];
    filterAttrs = keep: set: removeAttrs set (filter (name: !keep name set.${name}) (attrNames set));
    mapAttrsToList = f: set: map (name: f name set.${name}) (attrNames set);
    inherit listToAttrs;
    mapAttrs' = f: set: listToAttrs (mapAttrsToList f set);
    nameValuePair = name: value: { inherit name value; };
    genAttrs = names: f: listToAttrs (map (name: { inherit name; value = f name; }) names);
    attrByPath = path: default: set:
      if path == [ ] then set
      else if isAttrs set && set ? ${head path} then attrByPath (tail path) default set.${head path}
      else default;
    recursiveUpdate = a: b: a // mapAttrs (name: v: if isAttrs v && isAttrs (a.${name} or null) then recursiveUpdate a.${name} v else v) b;
    concatMapStrings = f: xs: concatStringsSep "" (map f xs);
    concatMapStringsSep = sep: f: xs: concatStringsSep sep (map f xs);
    concatStrings = concatStringsSep "";
    hasInfix = part: text: length (split (replaceStrings [ "." "[" "]" ] [ "\\." "\\[" "\\]" ] part) text) > 1;
    hasPrefix = prefix: text: substring 0 (stringLength prefix) text == prefix;
    hasSuffix = suffix: text:
      let at = stringLength text - stringLength suffix; in at >= 0 && substring at (stringLength suffix) text == suffix;
    removePrefix = prefix: text: if hasPrefix prefix text then substring (stringLength prefix) (-1) text else text;
    removeSuffix = suffix: text: if hasSuffix suffix text then substring 0 (stringLength text - stringLength suffix) text else text;
    splitString = sep: text: filter isString (split (replaceStrings [ "." "[" "]" ] [ "\\." "\\[" "\\]" ] sep) text);
    toInt = text: builtins.fromJSON text;
    toLower = replaceStrings
      [ "A" "B" "C" "D" "E" "F" "G" "H" "I" "J" "K" "L" "M" "N" "O" "P" "Q" "R" "S" "T" "U" "V" "W" "X" "Y" "Z" ]
      [ "a" "b" "c" "d" "e" "f" "g" "h" "i" "j" "k" "l" "m" "n" "o" "p" "q" "r" "s" "t" "u" "v" "w" "x" "y" "z" ];
    versionAtLeast = have: want: builtins.compareVersions have want >= 0;
    literalExpression = text: { _type = "literalExpression"; inherit text; };
    literalMD = text: { _type = "literalMD"; inherit text; };
    isDerivation = x: x.type or null == "derivation";
    getExe = package: "${package}/bin/${package.meta.mainProgram or package.pname}";

    mkOption = o: { _type = "option"; } // o;
    mkEnableOption = what: mkOption { type = types.bool; default = false; description = "Whether to enable ${what}."; };
    mkPackageOption = pkgs: name: _: mkOption { type = types.package; default = pkgs.${name}; description = "The ${name} package to use."; };
    mkIf = condition: content: { _type = "if"; inherit condition content; };
    mkMerge = contents: { _type = "merge"; inherit contents; };
    mkOverride = priority: content: { _type = "override"; inherit priority content; };
    mkDefault = mkOverride 1000;
    mkForce = mkOverride 50;

    types = import ./types.nix { inherit lib; };
  };
in
lib // import ./modules.nix { inherit lib; }

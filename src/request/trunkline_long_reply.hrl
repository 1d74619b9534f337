%% From which size on a binary is a long reply. (A macro: a caller must not call a function with a
%% long reply, see trunkline_long_reply.)
-define(IS_LONG_BINARY(Term), (byte_size(Term) >= 131_072)).

;; The compiled code of src/json/window.ts. The bytes of a window are at 0 to $end; the code also reads bytes behind
;; them, and ignores them. Compiled by "npx -p wabt wat2wasm src/json/window.wat", its binary is in window.ts.
(module
  (memory (export "memory") 3)

  ;; Returns the offset after the closing quote of a string, from any offset $at in its text; -1 if that is not before $end.
  (func $string (export "string") (param $at i32) (param $end i32) (result i32)
    (local $low v128) (local $high v128) (local $quotes i32) (local $slashes i32) (local $before i32)
    (local $next i32) (local $back i32)
    (block $none
      (loop $block
        (br_if $none (i32.ge_u (local.get $at) (local.get $end)))
        (local.set $low (v128.load align=1 (local.get $at)))
        (local.set $high (v128.load offset=16 align=1 (local.get $at)))
        (local.set $quotes (i32.or
          (i8x16.bitmask (i8x16.eq (local.get $low) (v128.const i32x4 0x22222222 0x22222222 0x22222222 0x22222222)))
          (i32.shl (i8x16.bitmask (i8x16.eq (local.get $high) (v128.const i32x4 0x22222222 0x22222222 0x22222222 0x22222222))) (i32.const 16))))
        (local.set $slashes (i32.or
          (i8x16.bitmask (i8x16.eq (local.get $low) (v128.const i32x4 0x5c5c5c5c 0x5c5c5c5c 0x5c5c5c5c 0x5c5c5c5c)))
          (i32.shl (i8x16.bitmask (i8x16.eq (local.get $high) (v128.const i32x4 0x5c5c5c5c 0x5c5c5c5c 0x5c5c5c5c 0x5c5c5c5c))) (i32.const 16))))
        ;; Quotes after no backslash, or after two backslashes: all others are escaped.
        (local.set $quotes (i32.and (local.get $quotes) (i32.or
          (i32.xor (i32.const -1) (i32.or (i32.shl (local.get $slashes) (i32.const 1)) (i32.shr_u (local.get $before) (i32.const 31))))
          (i32.or (i32.shl (local.get $slashes) (i32.const 2)) (i32.shr_u (local.get $before) (i32.const 30))))))
        (block $escaped
          (loop $quote
            (br_if $escaped (i32.eqz (local.get $quotes)))
            (local.set $next (i32.add (local.get $at) (i32.ctz (local.get $quotes))))
            (local.set $back (local.get $next))
            (block $run
              (loop $slash
                (br_if $run (i32.eqz (local.get $back)))
                (br_if $run (i32.ne (i32.load8_u (i32.sub (local.get $back) (i32.const 1))) (i32.const 0x5c)))
                (local.set $back (i32.sub (local.get $back) (i32.const 1)))
                (br $slash)))
            (if (i32.eqz (i32.and (i32.sub (local.get $next) (local.get $back)) (i32.const 1)))
              (then
                (br_if $none (i32.ge_u (local.get $next) (local.get $end)))
                (return (i32.add (local.get $next) (i32.const 1)))))
            (local.set $quotes (i32.and (local.get $quotes) (i32.sub (local.get $quotes) (i32.const 1))))
            (br $quote)))
        (local.set $before (local.get $slashes))
        (local.set $at (i32.add (local.get $at) (i32.const 32)))
        (br $block)))
    (i32.const -1))

  ;; Where "container" stopped: how many objects and arrays were open, and the first byte that it did not process.
  (global $depth (export "depth") (mut i32) (i32.const 0))
  (global $rest (export "rest") (mut i32) (i32.const 0))

  ;; Returns the offset after the bracket that closes the outermost of the $open objects and arrays around $at; a container
  ;; may begin at $at itself. -1 if that is not before $end.
  (func (export "container") (param $at i32) (param $end i32) (param $open i32) (result i32)
    (local $byte i32) (local $depth i32)
    (local.set $depth (local.get $open))
    (block $none
      (loop $next
        (global.set $rest (local.get $at))
        (br_if $none (i32.ge_u (local.get $at) (local.get $end)))
        (local.set $byte (i32.load8_u (local.get $at)))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (if (i32.eq (local.get $byte) (i32.const 0x22))
          (then
            (local.set $at (call $string (local.get $at) (local.get $end)))
            (br_if $none (i32.eq (local.get $at) (i32.const -1)))
            (br $next)))
        ;; Curly and square brackets differ in only one bit.
        (local.set $byte (i32.or (local.get $byte) (i32.const 0x20)))
        (if (i32.eq (local.get $byte) (i32.const 0x7b))
          (then (local.set $depth (i32.add (local.get $depth) (i32.const 1))) (br $next)))
        (br_if $next (i32.ne (local.get $byte) (i32.const 0x7d)))
        (local.set $depth (i32.sub (local.get $depth) (i32.const 1)))
        (br_if $next (local.get $depth))
        (return (local.get $at))))
    (global.set $depth (local.get $depth))
    (i32.const -1))
)

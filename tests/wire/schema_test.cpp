// SPDX-License-Identifier: Apache-2.0
#include <skein/wire/schema.hpp>

#include <catch2/catch_test_macros.hpp>

#include "messages.hpp"

namespace wire = skein::wire;
using namespace wire_test;

namespace wire_test {
struct first_shape {
    std::int32_t a = 0;
    std::string b;
};
struct same_shape {
    std::int32_t a = 0;
    std::string b;
};
struct other_name {
    std::int32_t a = 0;
    std::string c;
};
struct other_type {
    std::int64_t a = 0;
    std::string b;
};
struct other_order {
    std::string b;
    std::int32_t a = 0;
};
struct one_more {
    std::int32_t a = 0;
    std::string b;
    bool c = false;
};
struct wrapped {
    first_shape inside;
};
struct wrapped_other {
    other_name inside;
};
} // namespace wire_test

TEST_CASE("equal shapes have equal hashes, whatever they are called") {
    CHECK(wire::schema_hash<first_shape>() == wire::schema_hash<same_shape>());
    CHECK(wire::schema_hash<views>() == wire::schema_hash<owners>());
    CHECK(wire::schema_hash<const first_shape&>() == wire::schema_hash<first_shape>());
}

TEST_CASE("a changed name, type, order or number of fields changes the hash") {
    const auto hash = wire::schema_hash<first_shape>();
    CHECK(wire::schema_hash<other_name>() != hash);
    CHECK(wire::schema_hash<other_type>() != hash);
    CHECK(wire::schema_hash<other_order>() != hash);
    CHECK(wire::schema_hash<one_more>() != hash);
    CHECK(wire::schema_hash<wrapped>() != wire::schema_hash<wrapped_other>());
}

TEST_CASE("the text of a schema is spelled by us, not by the compiler") {
    CHECK(wire::schema_text<first_shape>() == "{a:i32,b:str}");
    CHECK(wire::schema_text<tree>() == "{name:str,children:vec<^0>}");
    CHECK(wire::schema_text<void>() == "void");
    CHECK(wire::schema_text<long>() == wire::schema_text<long long>());
    CHECK(wire::schema_text<everything>() ==
          "{truth:bool,i8:i8,u64:u64,f32:f32,f64:f64,letter:char,paint:enum<u8>,raw:byte,text:str,"
          "numbers:vec<i32>,flags:vec<bool>,names:vec<str>,blob:vec<byte>,triple:arr<u16,3>,"
          "pair_of_text:arr<str,2>,ordered:map<str,i64>,hashed:map<u32,{x:i32,y:f32}>,"
          "ordered_set:set<i16>,hashed_set:set<str>,maybe:opt<{x:i32,y:f32}>,maybe_not:opt<str>,"
          "choice:var<unit,i32,str,{x:i32,y:f32}>,couple:tup<i32,str>,few:tup<u8,f64,str>,"
          "pause:dur<i64,1/1000>,node:id<u64>,inside:{small:u8,large:u64},empty:{},"
          "many:vec<{small:u8,large:u64}>,root:{name:str,children:vec<^0>}}");
}

TEST_CASE("the hash is fixed, so that builds of different compilers agree") {
    CHECK(wire::schema_hash<first_shape>() == 0x020a3d0b4a97e73cu);
    CHECK(wire::schema_hash<everything>() == 0xbd20620609dba750u);
    STATIC_CHECK(wire::schema_hash<int>() == wire::schema_hash<std::int32_t>());
}

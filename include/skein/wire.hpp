// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer wire.
// Written by scripts/check_mirror.py --write.

#include <skein/wire/codec.hpp>
#include <skein/wire/csv.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>
#include <skein/wire/limits.hpp>
#include <skein/wire/reader.hpp>
#include <skein/wire/schema.hpp>
#include <skein/wire/writer.hpp>

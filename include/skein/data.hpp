// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer data.
// Written by scripts/check_mirror.py --write.

#include <skein/data/arena.hpp>
#include <skein/data/blur.hpp>
#include <skein/data/blur_operator.hpp>
#include <skein/data/desk.hpp>
#include <skein/data/draws.hpp>
#include <skein/data/explain.hpp>
#include <skein/data/folder.hpp>
#include <skein/data/helpers.hpp>
#include <skein/data/image.hpp>
#include <skein/data/loader.hpp>
#include <skein/data/order.hpp>
#include <skein/data/pipeline.hpp>
#include <skein/data/pixels.hpp>
#include <skein/data/resize.hpp>
#include <skein/data/slots.hpp>

// The provider's factory: offers the CPU device and creates one Ep a session.
#pragma once

#include "status.h"

namespace tilegraph {

struct Factory : OrtEpFactory {
  Factory();
};

}  // namespace tilegraph

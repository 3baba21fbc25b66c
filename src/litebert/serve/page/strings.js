// The texts of the page, by language.

import { en } from "./strings-en.js";
import { zh } from "./strings-zh.js";

export const STRINGS = { en, zh };

import{serve as o}from"./rdrr.js";o(self);

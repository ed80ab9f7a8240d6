var r=class extends Error{constructor(n,o,e){super(o,e);this.code=n}code;name="RdrrError"};export{r as RdrrError};
